"""How a module's parameters and buffers are stored, and everything that must leave that as it is."""

from __future__ import annotations

import copy
import pickle
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from kernel_selector.kernels import registry


def of(module):
    """Identity, memory, strides and aliases of each parameter and buffer by name, tied ones by each."""
    tensors = [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]
    return {
        name: (
            id(one),
            one.untyped_storage().data_ptr(),
            one.untyped_storage().nbytes(),
            *layout(one),
            one.storage_offset(),
            one.requires_grad,
            one.is_leaf,
        )
        for name, one in tensors
    }


def layout(tensor):
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def layouts(module):
    return {name: layout(one) for name, one in module.state_dict().items()}


def flattened(module):
    """The same module with all parameters views of one buffer, as flat optimizers and FSDP lay them out."""
    own = list(module.parameters())
    if own:
        flat = torch.cat([one.detach().reshape(-1) for one in own])
        pieces = flat.split([one.numel() for one in own])
        for one, piece in zip(own, pieces, strict=True):
            one.data = piece.view(one.shape)
    return module


def outputs(module, args):
    """The results of a call on fresh leaves."""
    found = module(*_nested(lambda one: one.detach().clone(), args))
    return [one for one in _leaves(found) if one.is_floating_point()]


def step(module, args, optimizer=None):
    """A call, a backward pass, and a step of the optimizer."""
    for one in module.parameters():
        one.grad = None
    loss = sum(one.float().square().mean() for one in outputs(module, args))
    loss.backward()
    for name, one in module.named_parameters():
        if one.grad is not None:
            assert (one.grad.shape, one.grad.stride()) == (one.shape, one.stride()), name
    if optimizer is not None:
        optimizer.step()
    return loss.item()


def assert_kept(module, args, *, dtypes=True):
    """That calls and steps, state dicts, dtypes, copies and pickles leave storage as torch leaves it."""
    before, values = of(module), {name: one.clone() for name, one in module.state_dict().items()}
    trained = [one for one in module.parameters() if one.requires_grad]
    with torch.no_grad():
        outputs(module, args)
    assert of(module) == before, "a call without gradients"
    if trained:
        step(module, args)
    assert of(module) == before, "a call and a backward pass"
    for name, value in module.state_dict().items():
        assert torch.equal(value, values[name]), f"a backward pass changed {name}"
    if trained:
        kinds = [lambda: torch.optim.SGD(trained, 0.1), lambda: torch.optim.AdamW(trained, 0.01, fused=True)]
        for optimizer in [kind() for kind in kinds]:
            step(module, args, optimizer)
            step(module, args, optimizer)
    assert of(module) == before, "an optimizer's step"
    module.load_state_dict(values)
    assert of(module) == before, "load_state_dict"
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert layouts(other) == layouts(module)
        outputs(other, args)
        assert layouts(other) == layouts(module), "a copy's call"
    assert of(module) == before, "copying"
    if not dtypes:  # many an implementation on a GPU takes no other
        return
    names = {name: entry[0] for name, entry in before.items()}
    wanted = {name: layout(one.double()) for name, one in module.state_dict().items()}
    module.double()
    assert {name: entry[0] for name, entry in of(module).items()} == names, "another dtype"
    assert layouts(module) == wanted, "another dtype"


@contextmanager
def process_group(backend):
    """One process by itself, over the loopback, without a port of a store."""
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def wrapped(module, how, device):
    """A module under DDP or FSDP2, or as it is."""
    if how == "ddp":
        return DistributedDataParallel(module, gradient_as_bucket_view=True)
    if how == "fsdp2":
        mesh = init_device_mesh(device, (1,))
        return fully_shard(module, mesh=mesh)
    return module


def losses(module, args, how, device="cpu", steps=2):
    """What steps under DDP or FSDP2 give, the first call being under it."""
    whole = wrapped(module, how, device)
    optimizer = torch.optim.SGD(whole.parameters(), 0.1)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = sum(one.float().square().mean() for one in outputs(whole, args))
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def built(operator, name, hyperparameters, device="cpu"):
    """A module with the parameters of the operator's inputs, and the inputs."""
    problem = registry.operator(operator).problem(hyperparameters)
    inputs = registry.operator(operator).make_inputs(problem, device, 0)
    module = registry.implementation(operator, name).build(problem)
    own = {name: layout(one) for name, one in module.state_dict().items()}
    default = registry.implementation(operator, registry.operator(operator).default).build(problem)
    assert own == layouts(default), "built as no module of torch's is"
    module = module.to(device)
    module.load_state_dict(dict(inputs.state_dict))
    return module, inputs.args


def _nested(change, value):
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, nn.utils.rnn.PackedSequence):
        return value
    return type(value)(_nested(change, one) for one in value)


def _leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [] if value is None else [leaf for one in value for leaf in _leaves(one)]
