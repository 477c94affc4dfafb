"""Tensor parallelism with sequence parallelism for the dense models of pytorch_model.py, by torch.distributed.tensor.parallel:
between linears a rank has its part of every sequence. Embedding, head and cross entropy are divided by vocabulary."""
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)


def parallelize(model, device_type, recipe):
    """Divides a model, already converted to the recipe, over all ranks, which have the same weights. Its loss and backward
    must run within `loss_parallel()`. tensorwise gathers in FP8; other recipes gather in BF16, as in torchtitan. The suffix
    `_async` overlaps collectives with parts of their GEMMs (asynchronous tensor parallelism)."""
    if not hasattr(model, "out") or model.experts():
        raise ValueError("--tensor divides the dense models of pytorch_model.py")
    name, _, how = recipe.partition("_")
    column, row, gather = ColwiseParallel, RowwiseParallel, PrepareModuleInput
    if name == "tensorwise" and how != "auto":
        from torchao.float8.float8_tensor_parallel import Float8ColwiseParallel, Float8RowwiseParallel, PrepareFloat8ModuleInput
        column, row, gather = Float8ColwiseParallel, Float8RowwiseParallel, PrepareFloat8ModuleInput
    mesh = init_device_mesh(device_type, (dist.get_world_size(),))
    if how == "async":
        import torch.distributed._functional_collectives as collectives
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group
        torch._inductor.config._micro_pipeline_tp = True
        enable_symm_mem_for_group(mesh.get_group().group_name)
        # At batch 1 the gather is a view, which Inductor does not fuse with its GEMMs (PyTorch 2.11).
        collectives._maybe_view_chunk_cat = lambda x, ranks, dim: torch.cat(torch.chunk(x, ranks), dim)
    rows, whole = Shard(1), Replicate()
    block = {"n1": SequenceParallel(), "n2": SequenceParallel(),
             "attn": gather(input_layouts=(rows, None, None), desired_input_layouts=(whole, None, None)),
             "ffn": gather(input_layouts=(rows,), desired_input_layouts=(whole,)),
             **{f"attn.{linear}": column() for linear in ("wq", "wk", "wv")}, "attn.wo": row(output_layouts=rows),
             "ffn.w1": column(), "ffn.w3": column(), "ffn.w2": row(output_layouts=rows)}
    tied = model.out.weight is model.emb.weight
    for layer in model.layers:
        parallelize_module(layer, mesh, block, src_data_rank=None)
    parallelize_module(model, mesh, {
        "emb": RowwiseParallel(input_layouts=whole, output_layouts=rows), "norm": SequenceParallel(),
        "out": ColwiseParallel(input_layouts=rows, output_layouts=Shard(-1), use_local_output=False)}, src_data_rank=None)
    model.emb.register_forward_hook(lambda *call: call[-1].clone())  # waits: blocks get one type of tensor, compiled once
    if tied:
        model.out.weight = model.emb.weight
