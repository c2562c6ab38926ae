#include "kernels/cuda/cublas_lt.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define LAYERCAKE_CUBLASLT 1
#endif

namespace layercake::kernels::cuda {

std::vector<std::string> CublasLtNames(const char* cuda_home) {
  const std::vector<std::string> files = {"libcublasLt.so.13", "libcublasLt.so.12"};
  std::vector<std::string> names = files;
  if (cuda_home == nullptr || *cuda_home == '\0') return names;
  for (const std::string& file : files) names.push_back(absl::StrCat(cuda_home, "/lib64/", file));
  return names;
}

int64_t RowsBucket(int64_t rows) {
  constexpr int64_t kSmallest = 32;
  constexpr int64_t kLargest = 2048;
  if (rows > kLargest) return (rows + kLargest - 1) / kLargest * kLargest;
  return std::max(kSmallest, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))));
}

#ifdef LAYERCAKE_CUBLASLT
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;
// How many algorithms the library is asked for, the best in its own eyes first.
constexpr int kProposals = 8;

template <typename Function>
absl::Status Find(void* library, const char* symbol, Function& function) {
  void* const address = dlsym(library, symbol);
  if (address == nullptr) return absl::NotFoundError(absl::StrCat("cuBLASLt has no ", symbol));
  function = reinterpret_cast<Function>(address);
  return absl::OkStatus();
}

// The functions that are used, by their own names.
struct Functions {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algorithm_get = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;

  absl::Status FindAll(void* library) {
    LC_RETURN_IF_ERROR(Find(library, "cublasLtCreate", create));
    LC_RETURN_IF_ERROR(Find(library, "cublasLtDestroy", destroy));
    LC_RETURN_IF_ERROR(Find(library, "cublasLtGetVersion", version));
    LC_RETURN_IF_ERROR(Find(library, "cublasLtMatmul", matmul));
    LC_RETURN_IF_ERROR(Find(library, "cublasLtMatmulAlgoGetHeuristic", heuristic));
    LC_RETURN_IF_ERROR(Find(library, "cublasLtMatmulAlgoConfigGetAttribute", algorithm_get));
    LC_RETURN_IF_ERROR(Find(library, "cublasLtMatmulDescCreate", desc_create));
    LC_RETURN_IF_ERROR(Find(library, "cublasLtMatmulDescDestroy", desc_destroy));
    LC_RETURN_IF_ERROR(Find(library, "cublasLtMatmulDescSetAttribute", desc_set));
    LC_RETURN_IF_ERROR(Find(library, "cublasLtMatrixLayoutCreate", layout_create));
    LC_RETURN_IF_ERROR(Find(library, "cublasLtMatrixLayoutDestroy", layout_destroy));
    LC_RETURN_IF_ERROR(Find(library, "cublasLtMatmulPreferenceCreate", preference_create));
    LC_RETURN_IF_ERROR(Find(library, "cublasLtMatmulPreferenceDestroy", preference_destroy));
    return Find(library, "cublasLtMatmulPreferenceSetAttribute", preference_set);
  }
};

absl::Status LtStatus(cublasStatus_t status, absl::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": cuBLASLt says ", static_cast<int>(status)));
}

// What an algorithm is chosen for.
struct PlanKey {
  bool bf16;
  bool accumulate;
  bool aligned;  // y and its stride, to 16 bytes
  int64_t bucket, n, k, y_stride;
  auto operator<=>(const PlanKey&) const = default;
};

// The descriptors of one product; `rows` columns of x and y in the library's column-major eyes.
class Descriptors {
 public:
  explicit Descriptors(const Functions& functions) : functions_(functions) {}
  ~Descriptors() {
    if (operation != nullptr) functions_.desc_destroy(operation);
    for (cublasLtMatrixLayout_t layout : {w, x, y}) {
      if (layout != nullptr) functions_.layout_destroy(layout);
    }
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  absl::Status Fill(const PlanKey& key, int64_t rows) {
    const cudaDataType_t type = key.bf16 ? CUDA_R_16BF : CUDA_R_16F;
    const cublasOperation_t transpose = CUBLAS_OP_T;
    LC_RETURN_IF_ERROR(LtStatus(functions_.desc_create(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                                "describe a product"));
    LC_RETURN_IF_ERROR(LtStatus(
        functions_.desc_set(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose),
        "describe a product"));
    const auto n = static_cast<uint64_t>(key.n);
    const auto k = static_cast<uint64_t>(key.k);
    const auto columns = static_cast<uint64_t>(rows);
    LC_RETURN_IF_ERROR(LtStatus(functions_.layout_create(&w, type, k, n, key.k), "describe w"));
    LC_RETURN_IF_ERROR(
        LtStatus(functions_.layout_create(&x, type, k, columns, key.k), "describe x"));
    return LtStatus(functions_.layout_create(&y, CUDA_R_32F, n, columns, key.y_stride),
                    "describe y");
  }

  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;

 private:
  const Functions& functions_;
};

class OpenCublasLt final : public CublasLt {
 public:
  OpenCublasLt(const Context& context, std::string file)
      : context_(context), file_(std::move(file)) {}
  ~OpenCublasLt() override {
    if (handle_ != nullptr) functions_.destroy(handle_);
  }

  absl::Status Open(void* library) {
    LC_RETURN_IF_ERROR(functions_.FindAll(library));
    LC_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(context_.device), "select the device"));
    LC_RETURN_IF_ERROR(LtStatus(functions_.create(&handle_), "create a handle"));
    LC_ASSIGN_OR_RETURN(
        workspace_, DeviceArray::Allocate(context_, kWorkspaceBytes, "the workspace of cuBLASLt"));
    return absl::OkStatus();
  }

  std::string name() const override { return absl::StrCat(file_, " ", functions_.version()); }

  absl::Status Multiply(const MatmulProblem& problem) override {
    const bool aligned =
        reinterpret_cast<uintptr_t>(problem.y) % 16 == 0 && problem.y_stride % 4 == 0;
    const PlanKey key = {
        problem.bf16, problem.accumulate, aligned,         RowsBucket(problem.rows),
        problem.n,    problem.k,          problem.y_stride};
    LC_ASSIGN_OR_RETURN(const cublasLtMatmulAlgo_t* algorithm, AlgorithmFor(key));
    Descriptors descriptors(functions_);
    LC_RETURN_IF_ERROR(descriptors.Fill(key, problem.rows));
    const float one = 1;
    const float beta = problem.accumulate ? 1 : 0;
    return LtStatus(
        functions_.matmul(handle_, descriptors.operation, &one, problem.w, descriptors.w, problem.x,
                          descriptors.x, &beta, problem.y, descriptors.y, problem.y, descriptors.y,
                          algorithm, workspace_.address(), workspace_.bytes(), context_.stream),
        absl::StrCat("multiply ", problem.rows, " rows by ", problem.n, " x ", problem.k));
  }

 private:
  using Proposals = std::array<cublasLtMatmulHeuristicResult_t, kProposals>;

  absl::StatusOr<const cublasLtMatmulAlgo_t*> AlgorithmFor(const PlanKey& key) {
    const auto found = algorithms_.find(key);
    if (found != algorithms_.end()) return &found->second;
    Descriptors descriptors(functions_);
    LC_RETURN_IF_ERROR(descriptors.Fill(key, key.bucket));
    cublasLtMatmulPreference_t preference = nullptr;
    LC_RETURN_IF_ERROR(LtStatus(functions_.preference_create(&preference), "state a preference"));
    Proposals proposals = {};
    int count = 0;
    const absl::Status status = Ask(key, descriptors, preference, proposals, &count);
    functions_.preference_destroy(preference);
    LC_RETURN_IF_ERROR(status);
    if (count < 1) {
      return absl::InternalError(absl::StrCat("cuBLASLt knows no way to multiply ", key.bucket,
                                              " rows by ", key.n, " x ", key.k));
    }
    const auto proposed = absl::MakeConstSpan(proposals).first(static_cast<size_t>(count));
    auto chosen = proposed.begin();
    if (!MaySplitK(key.bucket, key.n)) {
      chosen = std::find_if(proposed.begin(), proposed.end(),
                            [this](const auto& result) { return !SplitsK(result.algo); });
      if (chosen == proposed.end()) chosen = proposed.begin();
    }
    return &algorithms_.emplace(key, chosen->algo).first->second;
  }

  bool SplitsK(const cublasLtMatmulAlgo_t& algorithm) const {
    int32_t parts = 1;
    size_t written = 0;
    return functions_.algorithm_get(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts,
                                    sizeof parts, &written) == CUBLAS_STATUS_SUCCESS &&
           parts > 1;
  }

  absl::Status Ask(const PlanKey& key, const Descriptors& descriptors,
                   cublasLtMatmulPreference_t preference, Proposals& proposals, int* count) {
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      return LtStatus(functions_.preference_set(preference, attribute, &value, sizeof value),
                      "state a preference");
    };
    const uint32_t alignment = key.aligned ? 16 : 4;
    LC_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes}));
    LC_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment));
    LC_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment));
    LC_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{16}));
    LC_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t{16}));
    return LtStatus(
        functions_.heuristic(handle_, descriptors.operation, descriptors.w, descriptors.x,
                             descriptors.y, descriptors.y, preference, kProposals, proposals.data(),
                             count),
        absl::StrCat("choose how to multiply ", key.bucket, " rows by ", key.n, " x ", key.k));
  }

  const Context context_;
  const std::string file_;
  Functions functions_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceArray workspace_;
  // As many as the model has shapes, times the buckets.
  std::map<PlanKey, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CublasLt>> CublasLt::Load(const Context& context,
                                                         absl::Span<const std::string> names) {
  std::vector<std::string> answers;
  for (const std::string& name : names) {
    // Never closed: its kernels stay registered with CUDA as long as the process lives.
    void* const opened = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (opened == nullptr) {
      const char* const answer = dlerror();
      answers.push_back(answer != nullptr ? answer : name);
      continue;
    }
    auto library = std::make_unique<OpenCublasLt>(context, name);
    LC_RETURN_IF_ERROR(library->Open(opened));
    return library;
  }
  return absl::NotFoundError(absl::StrCat("no cuBLASLt: ", absl::StrJoin(answers, "; ")));
}
#else
absl::StatusOr<std::unique_ptr<CublasLt>> CublasLt::Load(const Context&,
                                                         absl::Span<const std::string>) {
  return absl::UnimplementedError("built without the header cublasLt.h");
}
#endif

}  // namespace layercake::kernels::cuda
