// Operands read back and matrices brought in, for the tests of products.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/gpu_test_support.h"
#include "kernels/cuda/matmul.h"

namespace layercake::kernels::cuda {

// The rows that fixed blocks stand for: scale * (256 high + low).
inline std::vector<float> FixedRows(const std::vector<FixedBlock>& blocks, int64_t rows,
                                    int64_t k) {
  std::vector<float> x(static_cast<size_t>(rows * k));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < k; ++c) {
      const FixedBlock& block =
          blocks[static_cast<size_t>(FixedBlockIndex(k, r, c / kUnitColumns))];
      const auto j = static_cast<int>(c % kUnitColumns / 32);
      const auto in_group = static_cast<int>(c % 32);
      const int at = (j % 4) * 128 + (in_group % 16 / 4) * 16 + (j / 4) * 8 + (in_group / 16) * 4 +
                     in_group % 4;
      const int value = 256 * block.quants[at] + block.quants[at + 64];
      x[static_cast<size_t>(r * k + c)] = block.scale * static_cast<float>(value);
    }
  }
  return x;
}

class MatmulTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    auto multiplier =
        Multiplier::Create(context_, {.max_rows = kDecodeRows, .max_panel_weights = 0});
    ASSERT_TRUE(multiplier.ok()) << multiplier.status();
    multiplier_ = *std::move(multiplier);
  }
  void TearDown() override {
    multiplier_.reset();
    GpuTest::TearDown();
  }

  std::unique_ptr<CudaMatrix> Matrix(WeightType type, int64_t n, int64_t k,
                                     const std::vector<uint8_t>& bytes) {
    auto matrix = UploadMatrix(
        context_, type, n, k,
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()));
    EXPECT_TRUE(matrix.ok()) << matrix.status();
    return matrix.ok() ? *std::move(matrix) : nullptr;
  }

  // An operand of `rows` rows with x in it.
  std::unique_ptr<Operand> Made(const std::vector<float>& x, int rows, int64_t k,
                                OperandForms forms) {
    auto operand = Operand::Create(context_, rows, k, forms);
    EXPECT_TRUE(operand.ok()) << operand.status();
    const DeviceArray on_device = Upload(x);
    const absl::Status status =
        PlainOperand(context_, on_device.as<float>(), rows, k, forms, **operand);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(cudaStreamSynchronize(context_.stream), cudaSuccess);
    return *std::move(operand);
  }

  std::vector<FixedBlock> ReadFixed(const Operand& operand, int64_t rows, int64_t k) {
    const int64_t groups = (rows + kFixedGroupRows - 1) / kFixedGroupRows;
    std::vector<FixedBlock> blocks(static_cast<size_t>(groups * kFixedGroupRows * ColumnBlocks(k)));
    EXPECT_EQ(cudaMemcpy(blocks.data(), operand.view().fixed, blocks.size() * sizeof(FixedBlock),
                         cudaMemcpyDeviceToHost),
              cudaSuccess);
    return blocks;
  }

  // rows x w.n() results of one product, the room poisoned before.
  std::vector<float> Product1(const CudaMatrix& w, const Operand& operand, int rows) {
    const DeviceArray out = Upload(Poisoned(rows * w.n()));
    const Product product = {&w, nullptr, out.as<float>(), w.n(), false};
    const absl::Status status = multiplier_->Multiply({&product, 1}, operand, rows);
    EXPECT_TRUE(status.ok()) << status;
    return Download<float>(out, rows * w.n());
  }

  std::unique_ptr<Multiplier> multiplier_;
};

}  // namespace layercake::kernels::cuda
