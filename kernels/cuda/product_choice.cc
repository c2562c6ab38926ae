#include "kernels/cuda/product_choice.h"

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_float.h"
#include "kernels/cuda/matmul_large.h"

namespace layercake::kernels::cuda {

ProductKernel ChooseProductKernel(WeightType type, int64_t k, int rows, bool has_units) {
  if (rows > kDecodeRows && LargePathPays(type, k, rows, has_units)) return ProductKernel::kLarge;
  return UnitBytes(type) == 0 ? ProductKernel::kFloat : ProductKernel::kDecode;
}

OperandForms FormsOfProduct(WeightType type, int64_t k, int rows, bool has_units) {
  switch (ChooseProductKernel(type, k, rows, has_units)) {
    case ProductKernel::kDecode:
      return kFixedForm;
    case ProductKernel::kFloat:
      return FloatDecodeForms(type);
    case ProductKernel::kLarge:
      break;
  }
  return LargeForms(type, has_units);
}

}  // namespace layercake::kernels::cuda
