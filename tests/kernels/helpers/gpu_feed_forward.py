"""Feed-forward layers on a GPU, and what a training step of one gives: for tests that need a GPU."""

from __future__ import annotations

import torch

from kernel_selector.kernels import registry

SIZES = {"rows": 2048, "hidden": 512, "inner": 2048, "dtype": "bfloat16"}


def problem_of(**given):
    return registry.operator("feed_forward").problem({**SIZES, **given})


def build(name, **given):
    """A module by an implementation with the parameters that are drawn for it, and x."""
    problem = problem_of(**given)
    module = registry.implementation("feed_forward", name).build(problem).cuda()
    inputs = registry.operator("feed_forward").make_inputs(problem, "cuda", 0)
    module.load_state_dict(dict(inputs.state_dict))
    return module, inputs.args[0].requires_grad_()


def both(module, x):
    """y and all gradients."""
    y = module(x)
    # without y's graph, which would tie the parameters to this stream: no capture may wait for it
    return y.detach(), *torch.autograd.grad(y.float().square().sum(), (x, *module.parameters()))
