#include "coordinator/step_cost.h"

#include "base/random.h"
#include "gtest/gtest.h"

namespace layercake::coordinator {
namespace {

double TrueSeconds(const StepShape& shape) {
  return 2e-3 + 1e-5 * shape.rows + 4e-5 * shape.samples + 2e-9 * shape.reads;
}

TEST(StepCostModel, LearnsAStagesTimesFromMixedSteps) {
  StepCostModel model;
  base::SeededRandom random(3);
  for (int i = 0; i < 400; ++i) {
    StepShape shape;
    const auto decodes = static_cast<int>(random.Below(32));
    for (int d = 0; d < decodes; ++d) {
      shape.Add(ShapeOf(static_cast<int>(random.Below(4000)), 1, true));
    }
    shape.Add(
        ShapeOf(static_cast<int>(random.Below(8000)), static_cast<int>(random.Below(256)), false));
    model.Add(shape, TrueSeconds(shape) * (0.98 + 0.04 * random.Unit()));
  }
  ASSERT_TRUE(model.ready());
  for (const StepShape& shape :
       {ShapeOf(0, 256, false), ShapeOf(7000, 64, false), ShapeOf(100, 1, true)}) {
    EXPECT_NEAR(model.Predict(shape), TrueSeconds(shape), 0.1 * TrueSeconds(shape));
  }
}

TEST(StepCostModel, IsRightForWhatItSawEvenWhenThatDecidesLittle) {
  StepCostModel model;
  const StepShape decodes{.rows = 8, .samples = 8, .reads = 800};
  for (int i = 0; i < 50; ++i) model.Add(decodes, 3e-3);
  EXPECT_NEAR(model.Predict(decodes), 3e-3, 1e-4);
}

TEST(StepCostModel, ThinksRowsDearUntilItSawDifferentSteps) {
  StepCostModel model;
  for (int i = 0; i < 50; ++i) model.Add({.rows = 8, .samples = 8, .reads = 800}, 1e-3);
  EXPECT_GE(model.Predict({.rows = 16, .samples = 8, .reads = 900}), 1.5e-3);
}

TEST(StepCostModel, AStreamMoreIsNotThoughtToCostAShareOfTheFixedTime) {
  StepCostModel model;
  // One stream, alone and beside chunks: samples are always one.
  for (int i = 0; i < 300; ++i) {
    StepShape shape = ShapeOf(i, 1, true);
    if (i % 2 == 1) shape.Add(ShapeOf(20 * i, 16 + i % 32, false));
    model.Add(shape, TrueSeconds(shape));
  }
  const StepShape three{.rows = 3, .samples = 3, .reads = 900};
  EXPECT_LE(model.Predict(three), 1.3 * TrueSeconds(three));
}

// Kernels of a GPU: flat to 16 rows, a step at 17, then less for each row.
TEST(StepCostModel, LearnsTheStepsOfKernels) {
  const auto measured = [](double rows) {
    return rows <= 16 ? 6.4e-3 + 2e-4 * rows : 17e-3 + 1.4e-4 * (rows - 17);
  };
  StepCostModel model;
  base::SeededRandom random(4);
  for (int i = 0; i < 600; ++i) {
    const int streams = 1 << random.Below(7);  // 1 to 64
    StepShape shape;
    for (int row = 0; row < streams; ++row) shape.Add(ShapeOf(500, 1, true));
    model.Add(shape, measured(shape.rows));
  }
  for (const double rows : {1.0, 4.0, 8.0, 16.0, 32.0, 64.0}) {
    const StepShape shape{
        .rows = rows, .samples = rows, .reads = 501 * rows, .entries = 501 * rows};
    EXPECT_NEAR(model.Predict(shape), measured(rows), 0.02 * measured(rows)) << rows << " rows";
  }
}

// A decoded row reads its whole context from memory, the rows of a chunk share the reading.
TEST(StepCostModel, TellsReadingFromAttending) {
  const auto measured = [](const StepShape& shape) {
    return 6e-3 + 1e-4 * shape.rows + 1e-8 * shape.reads + 6e-8 * shape.entries;
  };
  StepCostModel model;
  base::SeededRandom random(5);
  for (int i = 0; i < 400; ++i) {
    StepShape shape = ShapeOf(static_cast<int>(random.Below(4000)), 1, true);
    if (i % 2 == 0) {
      shape.Add(ShapeOf(static_cast<int>(random.Below(8000)), 64 << random.Below(4), false));
    }
    model.Add(shape, measured(shape));
  }
  for (const StepShape& shape : {ShapeOf(4000, 1, true), ShapeOf(6000, 400, false)}) {
    EXPECT_NEAR(model.Predict(shape), measured(shape), 0.05 * measured(shape));
  }
}

TEST(StepCostModel, BelievesThatASizeIsSlowWhenItWasSlowTwice) {
  StepCostModel model;
  for (int i = 0; i < 20; ++i) {
    for (const int rows : {1, 128, 256}) {
      const StepShape shape = ShapeOf(0, rows, rows == 1);
      model.Add(shape, TrueSeconds(shape));
    }
  }
  const StepShape large = ShapeOf(0, 512, false);
  model.Add(large, 5 * TrueSeconds(large));  // kernels were loaded
  EXPECT_LE(model.Predict(large), 1.1 * TrueSeconds(large));
  EXPECT_LE(model.Predict(ShapeOf(0, 400, false)), 1.1 * TrueSeconds(large));
  StepCostModel slow = model;
  slow.Add(large, 5 * TrueSeconds(large));
  EXPECT_NEAR(slow.Predict(large), 5 * TrueSeconds(large), TrueSeconds(large));
  model.Add(large, TrueSeconds(large));
  EXPECT_NEAR(model.Predict(large), TrueSeconds(large), 0.1 * TrueSeconds(large));
}

TEST(StepCostModel, StepsThatWereDisturbedDoNotCount) {
  StepCostModel model;
  for (int i = 0; i < 200; ++i) {
    const StepShape shape = ShapeOf(10 * i, i % 2 == 0 ? 1 : 300, i % 2 == 0);
    model.Add(shape, TrueSeconds(shape) * (i % 10 < 2 ? 2 : 1));
  }
  for (const StepShape& shape : {ShapeOf(1900, 1, true), ShapeOf(1900, 300, false)}) {
    EXPECT_NEAR(model.Predict(shape), TrueSeconds(shape), 0.05 * TrueSeconds(shape));
  }
}

TEST(StepCostModel, BeyondWhatItSawRowsMayBeThoughtCheap) {
  StepCostModel model;
  for (int i = 0; i < 50; ++i) model.Add(ShapeOf(i, 1, true), 3e-3);
  EXPECT_LE(model.PredictUnseen(ShapeOf(0, 128, false)), 10e-3);
  EXPECT_GE(model.PredictUnseen(ShapeOf(0, 128, false)), 6e-3);
  EXPECT_GE(model.Predict(ShapeOf(0, 128, false)), 0.3) << "beside streams: dear until it was seen";
  // What was seen is no guess.
  for (int i = 0; i < 4; ++i) model.Add(ShapeOf(0, 256, false), 60e-3);
  EXPECT_NEAR(model.PredictUnseen(ShapeOf(0, 256, false)), 60e-3, 6e-3);
}

TEST(StepCostModel, FollowsAStageThatBecomesSlower) {
  StepCostModel model;
  const StepShape decodes{.rows = 8, .samples = 8, .reads = 800};
  for (int i = 0; i < 500; ++i) model.Add(decodes, 1e-3);
  for (int i = 0; i < 500; ++i) model.Add(decodes, 2e-3);
  EXPECT_NEAR(model.Predict(decodes), 2e-3, 2e-4);
}

TEST(StepCostModel, IsNotReadyBeforeItHasSeenSteps) {
  StepCostModel model;
  EXPECT_FALSE(model.ready());
  model.Add(ShapeOf(0, 1, true), 0);  // a clock that did not move says nothing
  EXPECT_EQ(model.samples(), 0);
  EXPECT_FALSE(model.Saw(8));
  model.Add(ShapeOf(0, 8, true), 1e-3);
  EXPECT_TRUE(model.Saw(8));
  EXPECT_TRUE(model.Saw(5)) << "about as many";
  EXPECT_FALSE(model.Saw(16));
}

// Decodes say what an entry costs that one row reads; what it costs each row of a chunk is thought
// to be as much until a chunk has shown it.
TEST(StepCost, AtMostCountsWhatAChunkReadsUntilOneWasSeen) {
  StepCostModel cost;
  // 4 ms, 0.1 ms a row, 1 us an entry, however many rows read it.
  const auto seconds = [](const StepShape& shape) {
    return 4e-3 + 1e-4 * shape.rows + 1e-6 * shape.entries;
  };
  cost.Add(ShapeOf(0, 64, false), seconds(ShapeOf(0, 64, false)));
  for (int position = 100; position < 3000; position += 10) {
    const StepShape decode = ShapeOf(position, 1, true);
    cost.Add(decode, seconds(decode));
  }
  const StepShape chunk = ShapeOf(4000, 64, false);
  EXPECT_GT(cost.PredictAtMost(chunk), 3 * cost.Predict(chunk));
  EXPECT_NEAR(cost.PredictAtMost(ShapeOf(2000, 1, true)) / cost.Predict(ShapeOf(2000, 1, true)), 1,
              1e-9);
  cost.Add(ShapeOf(2000, 64, false), seconds(ShapeOf(2000, 64, false)));
  EXPECT_EQ(cost.PredictAtMost(chunk), cost.Predict(chunk));
}

}  // namespace
}  // namespace layercake::coordinator
