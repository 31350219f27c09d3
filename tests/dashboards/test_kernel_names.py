"""Short names of kernels, as charts show them."""

from __future__ import annotations

import json

import pytest

from tracewarehouse.dashboards import words
from tracewarehouse.dashboards.kernel_names import short_label, short_name, short_names

_ADD = "at::native::CUDAFunctor_add<c10::BFloat16>"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("fusion.12", "fusion.12"),
        ("%all-reduce.1", "%all-reduce.1"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("ampere_sgemm_128x128_tn", "ampere_sgemm_128x128_tn"),
        ("nvjet_sm90_tst_8x64_64x16_2x1_v_bz_TNN", "nvjet 8x64_64x16"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x32x256_MI16x16x1_SN", "Cijk_Alik_Bljk_BBS MT64x32x256"),
        ("cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_35_16x128", "cudnn sdpa flash_fprop"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, ncclWork*)", "ncclKernel_AllReduce_RING_LL_Sum_float"),
        (f"void at::native::vectorized_elementwise_kernel<4, {_ADD}, std::array<char*, 3ul> >(int)",
         "vectorized_elementwise [CUDAFunctor_add]"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float> > >(x)",
         "reduce [MeanOps]"),
        ("void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::"
         "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}> >(int)",
         "elementwise [direct_copy_kernel_cuda]"),
        ("void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(int)>(int)",
         "elementwise [arange_cuda_out]"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "rotary_embedding_kernel"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm>(P)",
         "cutlass_80_wmma_tensorop_bf16_s161616gemm"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<int> >(x)", "GemmUniversal"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, cublasGemvParams<float> >(x)",
         "cublasGemvParams"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8EEEvPT0_", "add_rmsnorm_quant_kernel"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassE", "Rmsnorm2dFwd"),
        *((odd, odd) for odd in ("", "<", "(", "_ZN3", "_Z", "foo<", "void")),
    ],
)  # fmt: skip
def test_a_name_says_what_a_kernel_computes(name: str, short: str) -> None:
    assert short_name(name) == short


def test_different_kernels_have_different_names() -> None:
    tiles = [f"nvjet_sm90_tst_8x64_64x16_{cluster}_v_bz_TNN" for cluster in ("2x1", "4x1", "1x2")]
    shown = short_names([*tiles, "fusion", tiles[0]])
    assert list(shown.values()) == ["nvjet 8x64_64x16", "nvjet 8x64_64x16 (2)", "nvjet 8x64_64x16 (3)"]
    assert len(short_name("x" * 500)) < 50


def test_charts_and_sentences_have_short_names() -> None:
    """The expression that labels an axis or a bar, and the sentence on what changed by operation."""
    kernel = f"void at::native::vectorized_elementwise_kernel<4, {_ADD}, std::array<char*, 3ul> >(int)"
    assert short_label(["fusion"], "datum.name") == "datum.name"
    assert short_label(["fusion", kernel], "datum.name") == (
        f"({json.dumps({kernel: 'vectorized_elementwise [CUDAFunctor_add]'})}[datum.name] || datum.name)"
    )
    cause = {"phase": "", "name": kernel, "baseline_us": 100.0, "value_us": 110.0, "difference_us": 10.0}
    assert words.changes([cause]) == [
        "A step is 10 µs, 10 %, longer, 110 µs against 100 µs: vectorized_elementwise [CUDAFunctor_add] +10 µs."
    ]
