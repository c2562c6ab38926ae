// Times products of few rows with quantised weights, for the shapes of Qwen2.5-32B: captured into a
// graph, weights rotated past the L2 cache, median of the replays. GB/s count weight bytes over
// the whole time between launches.
//
//   cuda_matmul_benchmark [quick]
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "kernels/cuda/device_facts.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/unit_layout.h"

namespace layercake::kernels::cuda {
namespace {

constexpr size_t kPastCacheBytes = size_t{400} << 20;
constexpr int kReplays = 7;

struct Shape {
  const char* name;
  int64_t n;  // of each matrix
  int64_t k;
  int matrices;  // in one launch
};
constexpr Shape kQkv = {"qkv", 7168, 5120, 1};
constexpr Shape kO = {"o", 5120, 5120, 1};
constexpr Shape kGateUp = {"gate+up", 27648, 5120, 2};
constexpr Shape kDown = {"down", 5120, 27648, 1};
constexpr Shape kHead = {"head", 152064, 5120, 1};
constexpr int64_t kHidden = 5120;
constexpr int64_t kFfn = 27648;

absl::StatusOr<Context> MakeContext() {
  Context context;
  cudaDeviceProp properties = {};
  LC_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, 0), "find a device"));
  LC_RETURN_IF_ERROR(CudaStatus(DescribeDevice(0, &context), "open the device"));
  LC_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&context.stream, cudaStreamNonBlocking),
                                "make a stream"));
  std::printf("%s, %d multiprocessors\n", properties.name, context.sm_count);
  return context;
}

// Microseconds of one of the `count` equal parts that `enqueue` enqueues.
absl::StatusOr<double> TimeGraph(const Context& context, int count,
                                 const std::function<absl::Status()>& enqueue) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  LC_RETURN_IF_ERROR(CudaStatus(
      cudaStreamBeginCapture(context.stream, cudaStreamCaptureModeThreadLocal), "capture"));
  LC_RETURN_IF_ERROR(enqueue());
  LC_RETURN_IF_ERROR(CudaStatus(cudaStreamEndCapture(context.stream, &graph), "capture"));
  LC_RETURN_IF_ERROR(CudaStatus(cudaGraphInstantiate(&exec, graph, 0), "make a graph"));
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  LC_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&begin), "make an event"));
  LC_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&end), "make an event"));
  std::vector<float> times;
  for (int replay = 0; replay <= kReplays; ++replay) {
    LC_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(begin, context.stream), "record"));
    LC_RETURN_IF_ERROR(CudaStatus(cudaGraphLaunch(exec, context.stream), "launch a graph"));
    LC_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(end, context.stream), "record"));
    LC_RETURN_IF_ERROR(CudaStatus(cudaStreamSynchronize(context.stream), "run a graph"));
    float ms = 0;
    LC_RETURN_IF_ERROR(CudaStatus(cudaEventElapsedTime(&ms, begin, end), "time a graph"));
    if (replay > 0) times.push_back(ms);  // the first warms up
  }
  static_cast<void>(cudaEventDestroy(begin));
  static_cast<void>(cudaEventDestroy(end));
  static_cast<void>(cudaGraphExecDestroy(exec));
  static_cast<void>(cudaGraphDestroy(graph));
  std::sort(times.begin(), times.end());
  return 1000.0 * static_cast<double>(times[times.size() / 2]) / count;
}

class Benchmark {
 public:
  static absl::StatusOr<std::unique_ptr<Benchmark>> Create(const Context& context) {
    LC_ASSIGN_OR_RETURN(
        std::unique_ptr<Multiplier> multiplier,
        Multiplier::Create(context, {.max_rows = kDecodeRows, .max_panel_weights = 0}));
    LC_ASSIGN_OR_RETURN(std::unique_ptr<Operand> operand,
                        Operand::Create(context, kDecodeRows, kFfn, kFixedForm));
    std::vector<uint64_t> random_words(size_t{4} << 20);
    base::SeededRandom random(1);
    for (uint64_t& word : random_words) word = random.Next();
    LC_ASSIGN_OR_RETURN(DeviceArray noise,
                        DeviceArray::Allocate(context, random_words.size() * 8, "noise"));
    LC_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpy(noise.address(), random_words.data(), noise.bytes(), cudaMemcpyHostToDevice),
        "copy noise"));
    std::vector<float> values(static_cast<size_t>(2 * kDecodeRows * kFfn));
    for (float& value : values) value = static_cast<float>(random.Unit()) - 0.5f;
    LC_ASSIGN_OR_RETURN(DeviceArray x,
                        DeviceArray::Allocate(context, values.size() * sizeof(float), "rows"));
    LC_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpy(x.address(), values.data(), x.bytes(), cudaMemcpyHostToDevice), "copy rows"));
    LC_ASSIGN_OR_RETURN(
        DeviceArray out,
        DeviceArray::Allocate(context, kDecodeRows * kHead.n * sizeof(float), "results"));
    auto benchmark = std::make_unique<Benchmark>();
    benchmark->context_ = context;
    benchmark->multiplier_ = std::move(multiplier);
    benchmark->operand_ = std::move(operand);
    benchmark->noise_ = std::move(noise);
    benchmark->x_ = std::move(x);
    benchmark->out_ = std::move(out);
    return benchmark;
  }

  // One shape, 1 to 16 rows.
  absl::Status Products(WeightType type, const Shape& shape) {
    LC_ASSIGN_OR_RETURN(auto sets, MakeSets(type, {shape}, kPastCacheBytes));
    const double bytes = SetBytes(sets[0]);
    std::printf("%-5s %-8s", WeightTypeName(type).data(), shape.name);
    for (const int rows : {1, 2, 4, 8, 16}) {
      LC_RETURN_IF_ERROR(
          PlainOperand(context_, x_.as<float>(), rows, shape.k, kFixedForm, *operand_));
      const int count = std::max<int>(static_cast<int>(sets.size()), 12);
      LC_ASSIGN_OR_RETURN(const double us, TimeGraph(context_, count, [&]() -> absl::Status {
                            for (int i = 0; i < count; ++i) {
                              const auto& set = sets[static_cast<size_t>(i) % sets.size()];
                              LC_RETURN_IF_ERROR(Multiply(set[0], rows));
                            }
                            return absl::OkStatus();
                          }));
      std::printf("  %2d: %7.2f us %5.0f", rows, us, bytes / us * 1e-3);
    }
    std::printf("\n");
    return absl::OkStatus();
  }

  // The products of a layer with the operands' kernels between them.
  absl::Status Layer(WeightType type) {
    LC_ASSIGN_OR_RETURN(auto sets, MakeSets(type, {kQkv, kO, kGateUp, kDown}, kPastCacheBytes));
    const double bytes = SetBytes(sets[0]);
    std::printf("%-5s layer   ", WeightTypeName(type).data());
    for (const int rows : {1, 2, 4, 8, 16}) {
      const int count = std::max<int>(static_cast<int>(sets.size()), 6);
      LC_ASSIGN_OR_RETURN(
          const double us, TimeGraph(context_, count, [&]() -> absl::Status {
            for (int i = 0; i < count; ++i) {
              LC_RETURN_IF_ERROR(OneLayer(sets[static_cast<size_t>(i) % sets.size()], rows));
            }
            return absl::OkStatus();
          }));
      std::printf("  %2d: %7.2f us %5.0f", rows, us, bytes / us * 1e-3);
    }
    std::printf("\n");
    return absl::OkStatus();
  }

  // The operands' kernels alone.
  absl::Status Operands() {
    for (const int rows : {1, 8, 16}) {
      const auto time = [&](const char* name, const std::function<absl::Status()>& make) {
        const auto us = TimeGraph(context_, 40, [&]() -> absl::Status {
          for (int i = 0; i < 40; ++i) LC_RETURN_IF_ERROR(make());
          return absl::OkStatus();
        });
        std::printf("  %s %.2f us", name, us.ok() ? *us : -1.0);
      };
      std::printf("operand, %2d rows:", rows);
      time("norm 5120", [&] { return Norm(rows); });
      time("SwiGLU 27648", [&] { return Gated(rows); });
      time("plain 5120", [&] {
        return PlainOperand(context_, x_.as<float>(), rows, kHidden, kFixedForm, *operand_);
      });
      std::printf("\n");
    }
    return absl::OkStatus();
  }

  void set_pdl(bool use) { context_.use_pdl = use; }

 private:
  // The matrices of one launch; launches of one set.
  using Launch = std::vector<std::unique_ptr<CudaMatrix>>;
  using Set = std::vector<Launch>;

  static double SetBytes(const Set& set) {
    double bytes = 0;
    for (const Launch& launch : set) {
      for (const auto& matrix : launch) bytes += static_cast<double>(matrix->bytes());
    }
    return bytes;
  }

  absl::StatusOr<std::unique_ptr<CudaMatrix>> Random(WeightType type, int64_t n, int64_t k) {
    const auto bytes = static_cast<size_t>(UnitRowCount(n) * ColumnBlocks(k) * UnitBytes(type));
    LC_ASSIGN_OR_RETURN(DeviceArray memory, DeviceArray::Allocate(context_, bytes, "weights"));
    for (size_t at = 0; at < bytes; at += noise_.bytes()) {
      LC_RETURN_IF_ERROR(CudaStatus(cudaMemcpyAsync(memory.as<std::byte>() + at, noise_.address(),
                                                    std::min(noise_.bytes(), bytes - at),
                                                    cudaMemcpyDeviceToDevice, context_.stream),
                                    "fill weights"));
    }
    return std::make_unique<CudaMatrix>(type, n, k, std::move(memory), UnitRange{});
  }

  absl::StatusOr<std::vector<Set>> MakeSets(WeightType type, const std::vector<Shape>& shapes,
                                            size_t bytes) {
    std::vector<Set> sets;
    double made = 0;
    while (sets.empty() || made < static_cast<double>(bytes)) {
      Set set;
      for (const Shape& shape : shapes) {
        Launch launch;
        for (int i = 0; i < shape.matrices; ++i) {
          LC_ASSIGN_OR_RETURN(launch.emplace_back(), Random(type, shape.n, shape.k));
        }
        set.push_back(std::move(launch));
      }
      made += SetBytes(set);
      sets.push_back(std::move(set));
    }
    return sets;
  }

  absl::Status Multiply(const Launch& launch, int rows) {
    std::vector<Product> products;
    float* out = out_.as<float>();
    for (const auto& matrix : launch) {
      products.push_back({matrix.get(), nullptr, out, matrix->n(), false});
      out += rows * matrix->n();
    }
    return multiplier_->Multiply(products, *operand_, rows);
  }

  absl::Status Norm(int rows) {
    return NormOperand(context_, x_.as<float>(), x_.as<float>(), 1e-6f, rows, kHidden, kFixedForm,
                       *operand_);
  }
  absl::Status Gated(int rows) {
    return SwigluOperand(context_, x_.as<float>(), x_.as<float>() + kDecodeRows * kFfn, kFfn, rows,
                         kFfn, kFixedForm, *operand_);
  }

  absl::Status OneLayer(const Set& set, int rows) {
    LC_RETURN_IF_ERROR(Norm(rows));
    LC_RETURN_IF_ERROR(Multiply(set[0], rows));
    LC_RETURN_IF_ERROR(
        PlainOperand(context_, x_.as<float>(), rows, kHidden, kFixedForm, *operand_));
    LC_RETURN_IF_ERROR(Multiply(set[1], rows));
    LC_RETURN_IF_ERROR(Norm(rows));
    LC_RETURN_IF_ERROR(Multiply(set[2], rows));
    LC_RETURN_IF_ERROR(Gated(rows));
    return Multiply(set[3], rows);
  }

  Context context_;
  std::unique_ptr<Multiplier> multiplier_;
  std::unique_ptr<Operand> operand_;
  DeviceArray noise_;
  DeviceArray x_;
  DeviceArray out_;
};

absl::Status Run(bool quick) {
  LC_ASSIGN_OR_RETURN(const Context context, MakeContext());
  LC_ASSIGN_OR_RETURN(std::unique_ptr<Benchmark> benchmark, Benchmark::Create(context));
  LC_RETURN_IF_ERROR(benchmark->Operands());
  std::vector<WeightType> types = {WeightType::kQ4_K, WeightType::kQ6_K, WeightType::kQ8_0};
  if (!quick) {
    types.insert(types.end(),
                 {WeightType::kQ5_K, WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ5_0,
                  WeightType::kQ5_1, WeightType::kQ2_K, WeightType::kQ3_K, WeightType::kIQ4_NL,
                  WeightType::kIQ4_XS, WeightType::kMXFP4});
  }
  std::printf("rows: us, GB/s\n");
  for (const WeightType type : types) {
    LC_RETURN_IF_ERROR(benchmark->Layer(type));
    for (const Shape& shape : {kQkv, kO, kGateUp, kDown, kHead}) {
      LC_RETURN_IF_ERROR(benchmark->Products(type, shape));
    }
  }
  std::printf("without dependent launch:\n");
  benchmark->set_pdl(false);
  return benchmark->Layer(WeightType::kQ4_K);
}

}  // namespace
}  // namespace layercake::kernels::cuda

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::strcmp(argv[1], "quick") == 0;
  const absl::Status status = layercake::kernels::cuda::Run(quick);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
