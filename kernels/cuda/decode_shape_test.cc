#include "kernels/cuda/decode_shape.h"

#include <gtest/gtest.h>

#include "kernels/cuda/operand_layout.h"
#include "kernels/cuda/unit_layout.h"

namespace layercake::kernels::cuda {
namespace {

Context Device(int sm_count, int major, int minor, int shared_kilobytes) {
  Context context;
  context.sm_count = sm_count;
  context.compute_major = context.code_major = major;
  context.compute_minor = minor;
  context.max_shared_bytes = shared_kilobytes * 1024;
  return context;
}

// H200, A100, RTX 3090, L40S, RTX 5090.
const Context kDevices[] = {Device(132, 9, 0, 227), Device(108, 8, 0, 163), Device(82, 8, 6, 99),
                            Device(142, 8, 9, 99), Device(170, 12, 0, 99)};
constexpr int kUnits[] = {UnitBytes(WeightType::kQ2_K), UnitBytes(WeightType::kQ4_K),
                          UnitBytes(WeightType::kQ6_K), UnitBytes(WeightType::kQ8_0)};

TEST(DecodeShape, CutsTheWorkAlikeForAnyRows) {
  for (const Context& device : kDevices) {
    for (const int unit : kUnits) {
      for (const int64_t items : {1, 40, 800, 8640, 23760}) {
        const int grid = ChooseDecodeShape(device, items, unit, 1).grid;
        EXPECT_GE(grid, 1);
        EXPECT_LE(grid, items);
        EXPECT_LE(grid, device.sm_count);
        for (int rows = 2; rows <= 16; ++rows) {
          EXPECT_EQ(ChooseDecodeShape(device, items, unit, rows).grid, grid);
        }
      }
    }
  }
}

TEST(DecodeShape, FitsTheSharedMemory) {
  for (const Context& device : kDevices) {
    for (const int unit : kUnits) {
      for (const int64_t items : {1, 800, 8640}) {
        for (int rows = 1; rows <= 16; ++rows) {
          const DecodeShape shape = ChooseDecodeShape(device, items, unit, rows);
          ASSERT_GE(shape.stages, 2) << device.sm_count << " " << unit << " " << rows;
          EXPECT_LE(shape.stages, kMaxDecodeStages);
          EXPECT_GE(shape.operand_at, static_cast<uint32_t>(unit * kTileUnits));
          EXPECT_GE(shape.stage_bytes - shape.operand_at, rows * sizeof(FixedBlock));
          EXPECT_EQ(shape.stage_bytes % 128, 0u);
          EXPECT_LE(static_cast<uint32_t>(shape.stages) * shape.stage_bytes, shape.shared_bytes);
          EXPECT_LE(shape.shared_bytes, MostDecodeSharedBytes(device));
        }
      }
    }
  }
}

TEST(DecodeShape, LeavesNoRoomForAnotherBlockWhereKernelsBeginEarly) {
  for (const Context& device : kDevices) {
    if (device.code_major < 9) continue;
    for (const int unit : kUnits) {
      for (const int64_t items : {200, 800, 8640}) {
        for (int rows = 1; rows <= 16; ++rows) {
          const DecodeShape shape = ChooseDecodeShape(device, items, unit, rows);
          // A multiprocessor has 1 KB more than a block may take, and keeps 1 KB per block.
          EXPECT_GT(2 * (shape.shared_bytes + 1024),
                    static_cast<uint32_t>(device.max_shared_bytes) + 1024)
              << unit << " " << items << " " << rows;
        }
      }
    }
  }
}

TEST(DecodeShape, SaysWhenThereIsTooLittleSharedMemory) {
  EXPECT_EQ(ChooseDecodeShape(Device(40, 7, 5, 48), 800, UnitBytes(WeightType::kQ8_0), 1).stages,
            0);
}

}  // namespace
}  // namespace layercake::kernels::cuda
