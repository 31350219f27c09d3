"""Collectives of GPU kernels, by what PyTorch and NCCL say of their launch."""

from __future__ import annotations

from typing import Any

import pytest

from tracewarehouse.ingest.columns.profiler_names import collective_kind
from tracewarehouse.ingest.hlo.collectives import KINDS
from tracewarehouse.ingest.hlo.stated_collectives import axis_of, ranks_of_group, stated_collective

GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
GROUP = {"Group size": 4, "Process Group Name": "2", "Process Group Ranks": "[0, 2, 4, 6]"}


def of(kernel: str = GENERIC, rank: int | None = None, **stated: Any) -> Any:
    """The collective of a kernel; `In_msg_nelems` stands for the stat `In msg nelems`."""
    found = stated_collective(kernel, {name.replace("_", " "): value for name, value in stated.items()}, rank)
    assert found is not None
    return found


def arguments(name: str, sent: int, received: int, dtype: str = "BFloat16") -> dict[str, Any]:
    return GROUP | {"Collective name": name, "In msg nelems": sent, "Out msg nelems": received, "dtype": dtype}


class TestKind:
    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("allreduce", "all-reduce"),
            ("allreduce_coalesced", "all-reduce"),
            ("barrier", "all-reduce"),
            ("_allgather_base", "all-gather"),
            ("all_gather", "all-gather"),
            ("all_gather_into_tensor_coalesced", "all-gather"),
            ("_reduce_scatter_base", "reduce-scatter"),
            ("reduce_scatter_tensor_coalesced", "reduce-scatter"),
            ("all_to_all", "all-to-all"),
            ("all_to_allv", "all-to-all"),
            ("broadcast", "collective-broadcast"),
            ("_broadcast_oop", "collective-broadcast"),
            ("reduce", "reduce"),
            ("gather", "gather"),
            ("scatter", "scatter"),
            ("send", "send"),
            ("recv", "recv"),
        ],
    )
    def test_of_arguments(self, name: str, kind: str) -> None:
        assert stated_collective(GENERIC, {"Collective name": name}).kind == kind  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        ("mark", "kind"),
        [
            ("nccl:all_to_all", "all-to-all"),
            ("nccl:_all_gather_base", "all-gather"),
            ("nccl:all_reduce", "all-reduce"),
            ("c10d::alltoall_base_", "all-to-all"),
            ("c10d::_reduce_scatter_base_", "reduce-scatter"),
            ("ncclAllReduce", "all-reduce"),
            ("ncclReduceScatter", "reduce-scatter"),
            ("ncclSend", "send"),
            ("nccl:send 0->1", "send"),
            ("nccl:recv 1<-0", "recv"),
            ("nccl:coalesced", "send"),  # says nothing, so the kernel decides
            ("ncclGroupEnd", "send"),
            ("nccl:sendrecv", "send"),
        ],
    )
    def test_of_annotations(self, mark: str, kind: str) -> None:
        assert of(SEND_RECV, annotation=mark).kind == kind

    def test_arguments_count_more_than_annotations_and_these_more_than_the_kernel(self) -> None:
        assert of(SEND_RECV, annotation="nccl:all_to_all", Collective_name="allreduce").kind == "all-reduce"
        assert of("ncclKernel_AllReduce_RING", annotation="nccl:all_to_all").kind == "all-to-all"
        assert of("ncclKernel_AllReduce_RING", annotation="forward").kind == "all-reduce"

    def test_a_generic_kernel_of_which_nothing_is_known_still_communicates(self) -> None:
        found = of(GENERIC)
        assert (found.kind, found.message_bytes, found.groups, found.group_size) == ("unknown", None, None, None)

    @pytest.mark.parametrize(
        "kernel", ["void at::native::CatArrayBatchedCopy<float>", "Memcpy DtoD (Device -> Device)"]
    )
    def test_what_prepares_the_buffers_of_a_collective_is_none(self, kernel: str) -> None:
        assert stated_collective(kernel, arguments("all_gather", 1, 4) | {"annotation": "nccl:all_gather"}) is None

    @pytest.mark.parametrize("kernel", ["gemm", "triton_mm", "void moe::combine", "splitK_reduce", "reduce_kernel"])
    def test_a_kernel_within_an_annotation_is_none_by_that_alone(self, kernel: str) -> None:
        assert stated_collective(kernel, {"annotation": "nccl:all_gather"}) is None

    @pytest.mark.parametrize(
        ("kernel", "kind"),
        [
            ("multimem_all_reduce_kernel<c10::BFloat16, 16>", "all-reduce"),
            ("void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<float>", "all-reduce"),
            ("void c10d::symmetric_memory::two_shot_all_reduce_kernel<c10::BFloat16>", "all-reduce"),
            ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", "all-reduce"),
            ("void sglang::cross_device_reduce_1stage<half, 2>", "all-reduce"),
            ("void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>", "reduce-scatter"),
            ("void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_oneshot_lamport<x>", "all-reduce"),
            ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_sync<x>", "all-reduce"),
            ("void tensorrt_llm::kernels::oneShotAllReduceKernel<float, 8>", "all-reduce"),
            ("void tensorrt_llm::kernels::lamport_style_one_shot_all_reduce_norm_kernel<half, 4>", "all-reduce"),
            ("void deep_ep::intranode::dispatch<8, 768, 8192>", "all-to-all"),
            ("void deep_ep::internode_ll::combine<true, 7168, 9>", "all-to-all"),
            ("void deep_ep::internode::notify_dispatch<false, 4>", "all-to-all"),
            ("void deep_ep::intranode::cached_notify_combine<8>", "all-to-all"),
            ("void deep_ep::layout::get_dispatch_layout<256, 32, 8>", None),
            ("nvshmemi_barrier_all_kernel", "unknown"),
            ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce"),
            ("nccldevkernel_reducescatter_sum_f32_ring_ll", "reduce-scatter"),  # as some traces have it (HTA 247)
            ("mscclKernel_Sum_hip_bfloat16_Simple_false", "unknown"),
            ("void cutlass::Kernel2<gemm_splitK_reduce>", None),
            ("triton_red_fused_all_reduce_norm_0", None),
            ("void moe::finalize_and_combine<float>", None),
            ("my_one_shot_all_reduce", None),
        ],
    )
    def test_by_the_kernel_alone(self, kernel: str, kind: str | None) -> None:
        assert collective_kind(kernel, kernel, KINDS) == kind


class TestMessage:
    @pytest.mark.parametrize(
        ("name", "sent", "received", "size"),
        [
            ("allreduce", 100, 100, 200),
            ("_allgather_base", 25, 100, 200),
            ("_reduce_scatter_base", 100, 25, 200),
            ("all_to_allv", 70, 100, 140),
            ("broadcast", 100, 100, 200),
            ("gather", 25, 100, 200),
            ("scatter", 0, 25, 50),
            ("allreduce", 0, 0, None),  # a kernel ran, so nothing is not what it moved
        ],
    )
    def test_elements_times_their_size(self, name: str, sent: int, received: int, size: int | None) -> None:
        found = stated_collective(GENERIC, arguments(name, sent, received))
        assert found is not None
        assert (found.message_bytes, found.dtype) == (size, "bf16")

    @pytest.mark.parametrize(
        ("dtype", "size"),
        [
            ("Float", 400),
            ("Long", 800),
            ("Byte", 100),
            ("Float8_e4m3fn", 100),
            ("ComplexFloat", 800),
            ("Opaque9", None),
        ],
    )
    def test_types(self, dtype: str, size: int | None) -> None:
        found = stated_collective(GENERIC, arguments("allreduce", 100, 100, dtype))
        assert found is not None and found.message_bytes == size

    def test_shapes_of_the_annotation_where_no_argument_tells(self) -> None:
        shapes = {"annotation_dims": "[[394241]]", "annotation_types": '["float"]'}
        assert of(SEND_RECV, annotation="nccl:all_to_all", **shapes).message_bytes == 394241 * 4
        several = {
            "annotation_dims": "[[8, 4], [], [2]]",
            "annotation_types": '["c10::BFloat16", "Scalar", "c10::BFloat16"]',
        }
        assert of(annotation="nccl:all_reduce", **several).message_bytes == 34 * 2
        gathered = {"annotation_dims": "[[8]]", "annotation_types": '["c10::Half"]'}
        assert of(annotation="nccl:_all_gather_base", Group_size=4, **gathered).message_bytes == 64
        assert of(annotation="nccl:_all_gather_base", **gathered).message_bytes is None  # of how many ranks?

    @pytest.mark.parametrize(
        ("dims", "types"),
        [
            ("[[[28]]]", '["TensorList"]'),
            ("[[4], [4]]", '["float", "int"]'),
            ("[[4]]", '["float", "int"]'),
            ("[[-4]]", '["float"]'),
            ("{}", '["float"]'),
            ("[[4]", '["float"]'),
            ("[" * 100_000, '["float"]'),
        ],
    )
    def test_shapes_that_do_not_tell(self, dims: str, types: str) -> None:
        assert of(annotation="nccl:all_reduce", annotation_dims=dims, annotation_types=types).message_bytes is None

    def test_a_payload_of_nccl_counts_bytes(self) -> None:
        payload = {"message_bytes": 32768, "Group size": 2}
        found = stated_collective("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", payload)
        assert found is not None and (found.message_bytes, found.group_size) == (32768, 2)

    def test_a_payload_of_a_gather_counts_the_part_of_one_rank(self) -> None:
        found = stated_collective("ncclDevKernel_AllGather_RING_LL", {"message_bytes": 100, "Group size": 8})
        assert found is not None and found.message_bytes == 800
        found = stated_collective(
            "ncclDevKernel_SendRecv", {"annotation": "ncclAlltoAll", "message_bytes": 100, "Group size": 8}
        )
        assert found is not None and (found.kind, found.message_bytes) == ("all-to-all", 800)
        found = stated_collective("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", {"message_bytes": 100})
        assert found is not None and found.message_bytes is None

    def test_absurd_sizes_are_unknown(self) -> None:
        assert of(Collective_name="allreduce", In_msg_nelems=1 << 60, dtype="Double").message_bytes is None
        assert of(Collective_name="allreduce", In_msg_nelems="-5", dtype="Double").message_bytes is None


class TestGroup:
    def test_listed(self) -> None:
        assert ranks_of_group(GROUP) == ((0, 2, 4, 6),)
        assert of(**{k.replace(" ", "_"): v for k, v in GROUP.items()}).group_size == 4

    def test_abbreviated_lists_follow_from_start_and_stride(self) -> None:
        listed = {"Process Group Ranks": "[0, 2, 4, ...]", "Group size": 40}
        assert ranks_of_group(listed) is None
        [group] = ranks_of_group(listed | {"Global rank start": 1, "Global rank stride": 2}) or ()
        assert group == tuple(range(1, 81, 2))
        assert ranks_of_group(listed | {"Global rank start": 1, "Global rank stride": -1}) is None

    @pytest.mark.parametrize("ranks", ["[]", "[0, 0]", "[0, -1]", '["a"]', "nothing", "[0, 1, 2]"])
    def test_lists_that_are_no_group_of_this_size(self, ranks: str) -> None:
        assert ranks_of_group({"Process Group Ranks": ranks, "Group size": 2}) is None

    def test_a_send_and_its_receive_are_one_pair(self) -> None:
        sent = of(rank=3, Collective_name="send", Dst_Rank=5, **{k.replace(" ", "_"): v for k, v in GROUP.items()})
        received = of(rank=5, Collective_name="recv", Src_Rank=3)
        assert sent.pairs == received.pairs == ((3, 5),)
        assert (sent.groups, sent.group_size) == (None, 2)
        assert of(Collective_name="send", Dst_Rank=5).pairs is None

    @pytest.mark.parametrize(
        ("description", "axis"),
        [
            ("mesh_tp", "tp"),
            ("tp:0", "tp"),
            ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
            ("DATA_PARALLEL_GROUP_WITH_CP", "dp+sp"),
            ("mesh_dp_shard", "dp"),
            ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
            ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
            ("default_pg", None),
            ("undefined", None),
            ("", None),
            (None, None),
        ],
    )
    def test_axis_of_a_description(self, description: str | None, axis: str | None) -> None:
        assert axis_of(description) == axis

    def test_ranks_name_a_communicator_alike(self) -> None:
        first, second = (
            stated_collective(GENERIC, arguments(*a)) for a in (("_allgather_base", 1, 4), ("allreduce", 2, 2))
        )
        assert first and second and first.communicator == second.communicator
        other = stated_collective(GENERIC, arguments("allreduce", 2, 2) | {"Process Group Ranks": "[1, 3, 5, 7]"})
        assert other and other.communicator != first.communicator


@pytest.mark.parametrize(
    ("counts", "types", "size"),
    [
        ("[3,5]", '["Float","Half"]', 22),
        ("[3,5]", '["Float"]', None),
        ("3", '["Float","Half"]', None),
        ("[3,5]", '["Float",7]', None),
        ("[3,5]", '["Float","Odd"]', None),
    ],
)
def test_several_calls_of_one_kernel_may_be_of_several_types(counts: str, types: str, size: int | None) -> None:
    sent = of(SEND_RECV, In_msg_nelems=counts, dtype=types)
    assert (sent.kind, sent.message_bytes, sent.dtype) == ("send", size, None)
