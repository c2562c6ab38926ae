#include "kernels/cuda/product_choice.h"

#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matmul_float.h"
#include "kernels/cuda/matmul_large.h"

namespace layercake::kernels::cuda {

ProductKernel ChooseProductKernel(WeightType type, int64_t k, int rows) {
  if (rows > kDecodeRows && LargePathPays(type, k, rows)) return ProductKernel::kLarge;
  return UnitBytes(type) == 0 ? ProductKernel::kFloat : ProductKernel::kDecode;
}

OperandForms FormsOfProduct(WeightType type, int64_t k, int rows) {
  switch (ChooseProductKernel(type, k, rows)) {
    case ProductKernel::kDecode:
      return kFixedForm;
    case ProductKernel::kFloat:
      return FloatDecodeForms(type);
    case ProductKernel::kLarge:
      break;
  }
  return LargeForms(type);
}

}  // namespace layercake::kernels::cuda
