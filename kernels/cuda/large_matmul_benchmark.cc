// Products with the matrices of Qwen2.5-32B: float weights at 1 to 16 rows, then Q4_K, Q6_K and
// BF16 at 16 to 2,048 rows, by groups of 16, by the path for many rows, by its kernels for cards
// other than Hopper ("others") and by panels.
//
//   shapes: qkv 7168 x 5120, o 5120 x 5120, gate + up 2 x 27648 x 5120, down 5120 x 27648,
//   head 152064 x 5120. A product reads its weights once (GB/s counts those bytes alone) and does
//   2 n k operations a row. Copies of the weights take turns so that the L2 cache holds none;
//   calls run from a graph; the figure is the median of nine replays.
//
// Arguments, in any order: types (BF16 Q4_K ...), shapes and numbers of rows to measure; of each
// kind that is not named, all (of types BF16, Q4_K and Q6_K).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "kernels/cpu/kernels_test_support.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/device_facts.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_large.h"

namespace layercake::kernels::cuda {
namespace {

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
void Must(cudaError_t error) { Must(CudaStatus(error, "benchmark")); }
template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

struct Shape {
  const char* name;
  int64_t n, k;
  int matrices;
};
constexpr Shape kShapes[] = {{"qkv", 7168, 5120, 1},
                             {"o", 5120, 5120, 1},
                             {"gate+up", 27648, 5120, 2},
                             {"down", 5120, 27648, 1},
                             {"head", 152064, 5120, 1}};
constexpr int kMostRows = 2048;

Context MakeContext() {
  Context context;
  Must(DescribeDevice(0, &context));
  Must(cudaStreamCreateWithFlags(&context.stream, cudaStreamNonBlocking));
  return context;
}

// Microseconds of one of `calls` calls.
double Measure(const Context& context, int calls, const std::function<void(int)>& call) {
  constexpr int kReplays = 9;
  for (int i = 0; i < calls; ++i) call(i);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  Must(cudaStreamBeginCapture(context.stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < calls; ++i) call(i);
  Must(cudaStreamEndCapture(context.stream, &graph));
  Must(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  Must(cudaEventCreate(&begin));
  Must(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < kReplays; ++i) {
    Must(cudaEventRecord(begin, context.stream));
    Must(cudaGraphLaunch(executable, context.stream));
    Must(cudaEventRecord(end, context.stream));
    Must(cudaEventSynchronize(end));
    times.push_back(0);
    Must(cudaEventElapsedTime(&times.back(), begin, end));
  }
  Must(cudaEventDestroy(begin));
  Must(cudaEventDestroy(end));
  Must(cudaGraphExecDestroy(executable));
  Must(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  return 1000.0 * static_cast<double>(times[kReplays / 2]) / calls;
}

class Bench {
 public:
  Bench() : context_(MakeContext()), random_(1) {
    multiplier_ = Must(Multiplier::Create(context_, {kDecodeRows, 0}));
    LargeMatmulOptions options;
    options.max_panel_weights = int64_t{152064} * 5120;
    large_ = Must(LargeMatmul::Create(context_, options));
    Context other = context_;
    other.compute_major = 8;
    others_ = Must(LargeMatmul::Create(other, options));
    options.panels_only = true;
    panels_ = Must(LargeMatmul::Create(context_, options));
    constexpr int64_t kMostK = 27648;
    constexpr int64_t kMostN = 2 * 27648;
    x_ = Must(DeviceArray::Allocate(context_, sizeof(float) * kMostRows * kMostK, "x"));
    out_ = Must(DeviceArray::Allocate(context_, sizeof(float) * kMostRows * kMostN, "out"));
    head_ = Must(DeviceArray::Allocate(context_, sizeof(float) * kMostRows * 152064, "logits"));
    operand_ = Must(Operand::Create(
        context_, kMostRows, kMostK,
        kFixedForm | kFloat32Form | kFloat16Form | kBfloat16Form | kTileForm | kBfloat16HighForm));
    const std::vector<float> x = RandomFloats(random_, kMostRows * kMostK);
    Must(cudaMemcpy(x_.address(), x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice));
  }

  // `wanted`: whether a shape, or a number of rows, is to be measured.
  void Run(WeightType type, const std::function<bool(const std::string&)>& wanted) {
    for (const Shape& shape : kShapes) {
      if (!wanted(shape.name)) continue;
      Upload(type, shape);
      const bool is_float = IsFloatType(type);
      for (const int rows : {1, 2, 4, 8, 16, 32, 64, 128}) {
        if (!wanted(std::to_string(rows))) continue;
        if (is_float ? rows <= kDecodeRows : rows >= kDecodeRows) {
          Report(type, shape, rows, "groups", [&](int copy) { Groups(shape, copy, rows); });
        }
      }
      for (const int rows : {32, 64, 96, 128, 256, 512, 2048}) {
        if (!wanted(std::to_string(rows))) continue;
        Report(type, shape, rows, "large", [&](int copy) {
          Must(large_->Multiply(Products(shape, copy, 0), *operand_, rows));
        });
        if (!is_float) {
          Report(type, shape, rows, "others", [&](int copy) {
            Must(others_->Multiply(Products(shape, copy, 0), *operand_, rows));
          });
        }
        if (is_float && type != WeightType::kBF16) continue;  // the same again
        Report(type, shape, rows, is_float ? "library" : "panels", [&](int copy) {
          Must(panels_->Multiply(Products(shape, copy, 0), *operand_, rows));
        });
      }
    }
  }

 private:
  void Upload(WeightType type, const Shape& shape) {
    weights_.clear();
    constexpr int64_t kRandomRows = 512;
    const std::vector<uint8_t> some = RandomWeights(random_, type, kRandomRows, shape.k);
    const size_t row_bytes = RowBytes(type, shape.k);
    std::vector<uint8_t> bytes(static_cast<size_t>(shape.n) * row_bytes);
    for (size_t at = 0; at < bytes.size(); at += some.size()) {
      std::memcpy(bytes.data() + at, some.data(), std::min(some.size(), bytes.size() - at));
    }
    bytes_ = bytes.size() * static_cast<size_t>(shape.matrices);
    constexpr size_t kBeyondCache = size_t{400} << 20;
    copies_ = static_cast<int>((kBeyondCache + bytes_ - 1) / bytes_);
    for (int i = 0; i < copies_ * shape.matrices; ++i) {
      weights_.push_back(Must(UploadMatrix(
          context_, type, shape.n, shape.k,
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()))));
    }
    Must(PlainOperand(context_, x_.as<float>(), kMostRows, shape.k, operand_->forms(), *operand_));
  }

  absl::Span<const Product> Products(const Shape& shape, int copy, int64_t first_row) {
    products_.clear();
    float* const out = shape.n > 100000 ? head_.as<float>() : out_.as<float>();
    for (int i = 0; i < shape.matrices; ++i) {
      products_.push_back({weights_[static_cast<size_t>(copy * shape.matrices + i)].get(), nullptr,
                           out + (first_row * shape.matrices + i) * shape.n,
                           shape.matrices * shape.n, false});
    }
    return products_;
  }

  // The operand's first rows stand for every group: the same bytes are moved.
  void Groups(const Shape& shape, int copy, int rows) {
    for (int first = 0; first < rows; first += kDecodeRows) {
      Must(multiplier_->Multiply(Products(shape, copy, first), *operand_,
                                 std::min(rows - first, kDecodeRows)));
    }
  }

  void Report(WeightType type, const Shape& shape, int rows, const char* way,
              const std::function<void(int)>& call) {
    const double us = Measure(context_, copies_, call);
    const double operations = 2.0 * rows * static_cast<double>(shape.n * shape.k * shape.matrices);
    std::printf("%-5s %-8s %5d rows  %-7s %9.1f us %7.0f GB/s %7.1f TFLOP/s\n",
                std::string(WeightTypeName(type)).c_str(), shape.name, rows, way, us,
                static_cast<double>(bytes_) / us * 1e-3, operations / us * 1e-6);
    std::fflush(stdout);
  }

  Context context_;
  base::SeededRandom random_;
  std::unique_ptr<Multiplier> multiplier_;
  std::unique_ptr<LargeMatmul> large_, others_, panels_;
  DeviceArray x_, out_, head_;
  std::unique_ptr<Operand> operand_;
  std::vector<std::unique_ptr<CudaMatrix>> weights_;
  std::vector<Product> products_;
  size_t bytes_ = 0;
  int copies_ = 0;
};

}  // namespace
}  // namespace layercake::kernels::cuda

int main(int argc, char** argv) {
  using layercake::kernels::WeightType;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto named = [&](const std::string& name) {
    return std::find(arguments.begin(), arguments.end(), name) != arguments.end();
  };
  const auto is_type = [](const std::string& name) {
    return std::any_of(
        std::begin(layercake::kernels::kAllTypes), std::end(layercake::kernels::kAllTypes),
        [&](WeightType type) { return layercake::kernels::WeightTypeName(type) == name; });
  };
  const auto is_number = [](const std::string& name) {
    return name.find_first_not_of("0123456789") == std::string::npos;
  };
  const auto wanted = [&](const std::string& name) {
    return named(name) || std::none_of(arguments.begin(), arguments.end(), [&](const auto& other) {
             return !is_type(other) && is_number(other) == is_number(name);
           });
  };
  const bool types_named = std::any_of(arguments.begin(), arguments.end(), is_type);
  layercake::kernels::cuda::Bench bench;
  for (const WeightType type : layercake::kernels::kAllTypes) {
    const auto name = std::string(layercake::kernels::WeightTypeName(type));
    const bool usual = name == "BF16" || name == "Q4_K" || name == "Q6_K";
    if (types_named ? named(name) : usual) bench.Run(type, wanted);
  }
  return 0;
}
