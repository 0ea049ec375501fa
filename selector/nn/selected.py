"""Base classes of the drop-in modules: selection on a call, printing, freezing, torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from kernel_selector.kernels.contract import SelectorError, UnsupportedProblem
from kernel_selector.kernels.contract.errors import shorten
from kernel_selector.kernels.contract.record import COMPILED

from ..errors import InvalidRequest
from .hyperparameters import Values, as_made, computed_dtype
from .replay_state import hooked
from .selection import REGIME, Policy, Selection
from .signature import Signed

if TYPE_CHECKING:
    from kernel_selector.db import Database

    from ..selection.choice import Choice


def constant_in_graphs(method: Callable[..., Any]) -> Callable[..., Any]:
    """Method that torch.compile calls while it traces; its result is a constant of the graph."""
    # as torch.compiler.assume_constant_result, which imports all of torch.compile
    method._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return method


class Selected(nn.Module):
    """Mixin for a torch.nn module whose forward runs a selected implementation.

    Arguments are torch's and, by keyword, `implementation` (a name, in place of a choice), `objective`
    ("time" or "memory"), `memory` (a limit for one layer's peak, bytes or text), `database` (as for
    `selector.choose`; a path or a URL where the module will be pickled) and `sizes`, with which the choice is
    made at once, for example `{"batch": 64, "seq": 50}`; else it is made at the first call. Calls with other
    sizes, dtypes, modes and devices get a choice of their own. All else is as torch has it: parameters, state
    dict, hooks.

    Under torch.func's transforms, in torch.export, torch.jit and torch.fx, for subclasses of tensors, for
    parameters of other shapes than the module was made with, and for sizes of zero, torch's own forward is
    called. Threads may share a module.
    """

    OPERATORS: ClassVar[Mapping[str, str]]  # the operators of a call by name; most modules have one, ""
    SIZES: ClassVar[tuple[str, ...]] = ()  # what `sizes` takes
    TORCHS_OWN: ClassVar[bool] = True  # the class that this is mixed into has a forward
    __signature__ = Signed()

    def __init__(
        self,
        *args: Any,
        implementation: str | Mapping[str, str] | None = None,
        objective: str = "time",
        memory: str | int | None = None,
        database: str | Path | Database | None = None,
        sizes: Mapping[str, int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        named = self._named(implementation)
        policy = Policy(objective=objective, memory=memory, database=database)
        self._start({name: replace(policy, implementation=named.get(name)) for name in self.OPERATORS})
        if sizes is not None:
            self._choose_for(sizes)

    def _start(self, policies: Mapping[str, Policy]) -> None:
        """Initial state without choices. Modules without a policy use torch's forward."""
        self._selections = {
            name: Selection(
                self.OPERATORS[name], policy, torchs_own=self.TORCHS_OWN, written_out=self._written_out()
            )
            for name, policy in policies.items()
        }

    def _written_out(self) -> bool:
        """Whether the module's own forward runs several operations where the framework has one."""
        return False

    def _named(self, implementation: str | Mapping[str, str] | None) -> Mapping[str, str]:
        """Implementation names by operator, from a name or a mapping.

        Raises InvalidRequest for other operators.
        """
        if implementation is None:
            return {}
        named = dict(implementation) if isinstance(implementation, Mapping) else {"": implementation}
        if not (
            named.keys() <= self.OPERATORS.keys() and all(isinstance(one, str) for one in named.values())
        ):
            raise InvalidRequest(
                f"implementation={implementation!r} for {type(self).__name__}: expected "
                + ("a name." if "" in self.OPERATORS else f"names by {', '.join(self.OPERATORS)}.")
            )
        return named

    @property
    def choices(self) -> list[Choice]:
        """Choices made so far, with their evidence: `module.choices[0].explain()`."""
        return [choice for selection in self._selections.values() for choice in selection.choices]

    def freeze(self, implementation: str | Mapping[str, str] | None = None) -> None:
        """Fixed implementation for all further calls: the one named, or the one of the latest call.

        Raises InvalidRequest before the first call where none is named, and UnknownImplementation. A later
        call that it cannot compute raises UnsupportedProblem.
        """
        named = self._named(implementation)
        for name, selection in self._selections.items():
            selection.freeze(named.get(name))

    def unfreeze(self) -> None:
        """End of `freeze`: the next call selects again."""
        for selection in self._selections.values():
            selection.unfreeze()

    def extra_repr(self) -> str:
        """Representation as torch's, with the selected implementations."""
        words = []
        for name, selection in self._selections.items():
            chosen = f"{selection.frozen} (frozen)" if selection.frozen else " | ".join(selection.names)
            named = selection.policy.implementation or "chosen at the first call"
            words.append(f"{name or 'implementation'}={chosen or named}")
        return ", ".join(word for word in (super().extra_repr(), *words) if word)

    def _torchs(self, *args: Any, **kwargs: Any) -> Any:
        """Output of torch's own forward, for tracing tools."""
        return super().forward(*args, **kwargs)

    def __prepare_scriptable__(self) -> nn.Module:
        """Module of torch's class with the same parameters and hooks, for torch.jit.script.

        Raises InvalidRequest where torch has none.
        """
        if not self.TORCHS_OWN:
            raise InvalidRequest(
                f"torch.jit.script of selector.nn.{type(self).__name__}: torch has no such module. "
                "Use torch.jit.trace or torch.export, which write down the operations of a call."
            )
        order = type(self).__mro__
        theirs: type[nn.Module] = order[order.index(Selected) + 1]
        plain = theirs.__new__(theirs)
        plain.__dict__.update({name: one for name, one in self.__dict__.items() if name != "_selections"})
        return plain

    @property
    def qconfig(self) -> Any:
        """Attribute that is always missing, because torch.ao would leave modules of other classes
        unquantized.
        """
        raise AttributeError(f"{type(self).__name__!r} object has no attribute 'qconfig'")

    @qconfig.setter
    def qconfig(self, _value: Any) -> None:
        raise InvalidRequest(
            f"torch.ao looks for modules by class, and would leave out selector.nn.{type(self).__name__}. "
            "Call selector.restore(model) first, where selector.optimize made it, or use torch.nn's class."
        )

    def _example(self, **sizes: int) -> tuple[Any, ...]:
        """Example arguments of a call with the given sizes, on the meta device."""
        raise NotImplementedError

    def _chosen_for_call(self, *args: Any) -> Any:
        """Implementation for a call with these arguments."""
        raise NotImplementedError

    def _choose_for(self, sizes: Mapping[str, int]) -> None:
        if not isinstance(sizes, Mapping) or set(sizes) != set(self.SIZES):
            wanted = ", ".join(self.SIZES) or "none"
            raise InvalidRequest(
                f"sizes={sizes!r} for {type(self).__name__}: expected {wanted}. "
                "Give these, or leave sizes out: the choice is then made at the first call."
            )
        for name, size in sizes.items():
            if not isinstance(size, int) or size < 1:
                raise InvalidRequest(f"sizes: {name}={shorten(size)}: expected a whole number from 1.")
        self._chosen_for_call(*self._example(**sizes))

    def _implementation(
        self,
        x: Tensor,
        dtype: torch.dtype,
        key: tuple[Any, ...],
        values: Callable[[], Values],
        name: str = "",
    ) -> nn.Module | None:
        """Implementation for a call, with this module's parameters; None for torch's own forward.

        `key` is what tells calls apart beside dtype, mode and device; `values`, asked for a new one only,
        gives hyperparameters.
        """
        selection = self._selections.get(name)
        if selection is None or selection.is_torchs_own or _left_to_torch(x, self.TORCHS_OWN):
            return None
        parameters = self._lent(name)
        training, kinds = self.training, list[Any]()
        wanted = torch.is_grad_enabled() and not training
        training |= wanted and x.requires_grad
        for one in parameters.values():
            if one is None:
                kinds.append(None)
                continue
            kinds += (one.shape, one.dtype, one.device, type(one))
            training |= wanted and one.requires_grad
        full = (key, dtype, training, x.device, *kinds)
        chosen = selection.of_call(full)
        if chosen is None:
            if self.TORCHS_OWN and not _are_plain(x, dtype, parameters):
                return None
            mode = "training" if training else "inference"
            chosen = selection.decide(full, values(), parameters, dtype, mode, str(x.device))
        return None if chosen.built is None else chosen.built.lent(parameters, self.training)

    def _chosen(self, name: str, method: str, *given: Any) -> Any:
        """What a method of this module chooses for an operator and given arguments; None for torch's own.

        In a graph of torch.compile the choice is made meanwhile for tensors of the same sizes, and is a
        constant of the graph; for a graph of any size it is that of the call that is traced.
        """
        if not torch.compiler.is_compiling():
            return getattr(self, method)(*given)
        return self._chosen_in_graph(name, method, given)

    def _chosen_in_graph(self, name: str, method: str, given: tuple[Any, ...]) -> Any:
        if name not in self._selections or not all(_is_plain(one) for one in given):
            return None
        selection = self._selections[name]
        described, settings = tuple(map(_described, given)), tuple(map(_described, self._settings(name)))
        circumstances = self.training, selection.frozen, *settings
        key, refusal = self._choose_in_graph(name, method, described, *circumstances)
        if refusal:
            raise UnsupportedProblem(refusal)
        if not key:
            return None
        lent = {path: one for path, one in self._lent(name).items() if one is not None}
        return partial(_called, selection.recorded[key], lent)

    @constant_in_graphs
    def _choose_in_graph(
        self, name: str, method: str, described: tuple[Any, ...], *circumstances: Any
    ) -> tuple[str, str]:
        """Key in `recorded` of the implementation for a call, empty for torch's own forward; and what refused
        the call, in words. It is chosen for a layer that is compiled with neighbours.
        """
        given = [_example_of(*one) if isinstance(one, tuple) else one for one in described]
        if not self.TORCHS_OWN:
            given = [_not_empty(one) if isinstance(one, Tensor) else one for one in given]
        outside = REGIME.set(COMPILED)
        try:
            chosen = getattr(self, method)(*given)
        except SelectorError as error:
            return "", str(error)
        finally:
            REGIME.reset(outside)
        if chosen is None:
            return "", ""
        dtypes = [computed_dtype(one) for one in map(_data_of, given) if isinstance(one, Tensor)]
        modes = torch.is_grad_enabled(), dtypes
        key = repr((method, described, self._lent_forms(name), *modes, *circumstances))
        without_weights(chosen)
        self._selections[name].recorded.setdefault(key, chosen)
        return key, ""

    def _lent(self, _name: str) -> Mapping[str, Tensor | None]:
        """Parameters for an operator, under the names that its implementations use."""
        if all(name in self._parameters for name in self._weights()):
            return self._parameters
        return {name: getattr(self, name) for name in self._weights()}

    def _lent_forms(self, name: str) -> list[Any]:
        """What of the parameters for an operator a graph is made for."""
        return [
            (path, one.shape, one.dtype, one.requires_grad)
            for path, one in self._lent(name).items()
            if one is not None
        ]

    def _settings(self, _name: str) -> tuple[Any, ...]:
        """Attributes that a choice for an operator hangs on; graphs are made anew where they change."""
        return ()

    def _weights(self) -> Sequence[str]:
        """Names of the parameters. A parametrized one is an attribute in place of a parameter."""
        return ()


def adopt(module: nn.Module, kind: type[Selected], policies: Mapping[str, Policy]) -> None:
    """Change of a torch.nn module's class, in place, to one of ours; references, hooks and state stay."""
    module.__class__ = kind
    assert isinstance(module, Selected)
    module._start(policies)


def stands_for(*parts: object, kind: type[nn.Module] = nn.Module) -> bool:
    """Whether all of the given submodules still compute the function of their class, without hooks or
    wrappers.
    """
    return all(as_made(one, kind) and not watched(one) for one in parts)


def watched(part: Any) -> bool:
    """Whether a module's call has side effects of its own: hooks or an overridden forward."""
    return hooked(part) or "forward" in part.__dict__


PLAIN = frozenset({Tensor, nn.Parameter})  # all others may mean something else by what they hold


def _left_to_torch(x: Tensor, torchs_own: bool) -> bool:
    """Whether implementations cannot handle the call and torch's own forward can."""
    if not torchs_own:
        return False
    return type(x) not in PLAIN or x.is_meta or x.is_nested or torch._C._are_functorch_transforms_active()


def _are_plain(x: Tensor, dtype: torch.dtype, parameters: Mapping[str, Tensor | None]) -> bool:
    """Whether all parameters are plain tensors on the device of x and, except under autocast, of its
    dtype. Torch handles or rejects all others.
    """
    return all(
        one is None
        or (type(one) in PLAIN and one.device == x.device and (dtype != x.dtype or one.dtype == dtype))
        for one in parameters.values()
    )


def without_weights(module: nn.Module) -> None:
    """Keep no weight in a module of one call, to which graphs give weights at each of theirs."""
    for part in module.modules():
        part._parameters = {
            name: None if one is None else nn.Parameter(one.detach().to("meta"), one.requires_grad)
            for name, one in part._parameters.items()
        }
        if isinstance(part, nn.RNNBase):
            part.__dict__["_flat_weights"] = list(part._parameters.values())


def as_torchs_where_looked_into(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Forward function that torch.export, torch.jit.trace and torch.fx see as torch's own.

    Wrappers, such as Accelerate's for mixed precision, keep a module's forward: when the module was put back
    since, this calls that of its class.
    """

    @wraps(forward)
    def either(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, Selected):
            return getattr(type(self), forward.__name__)(self, *args, **kwargs)
        looked_into = _is_looked_into(args, kwargs)
        return self._torchs(*args, **kwargs) if looked_into else forward(self, *args, **kwargs)

    return either


def _data_of(one: Any) -> Any:
    """Tensor of a packed sequence; all else as it is."""
    return one.data if not isinstance(one, Tensor) and isinstance(one, PackedSequence) else one


def _described(one: Any) -> Any:
    """What of an argument of a call is constant in a graph: a tuple in place of a tensor, a packed sequence
    or a float.
    """
    from kernel_selector.kernels.runtime.traced_sizes import traced_sizes

    if isinstance(one, Tensor):
        return traced_sizes(one), one.dtype, one.device, one.requires_grad
    if isinstance(one, PackedSequence):
        order = one.sorted_indices
        return _described(one.data), traced_sizes(one.batch_sizes), order is not None and traced_sizes(order)
    return (one.hex(),) if isinstance(one, float) else one  # which graphs of any size take for any float


def _example_of(*described: Any) -> Any:
    """Argument that is described so; a tensor is in the memory of one element, or of none where only its
    values would count. Of packed sequences without indices no tracer knows the number: it is then that of the
    mean over the steps.
    """
    if len(described) == 1:
        return float.fromhex(described[0])
    if len(described) == 3:
        data, (steps,), order = described
        x = _example_of(*data)
        return PackedSequence(x, torch.full((steps,), order[0] if order else -(-len(x) // max(1, steps))))
    sizes, dtype, device, wants_gradient = described
    if not dtype.is_floating_point:
        return torch.empty(sizes, dtype=dtype, device="meta")
    return torch.empty(1, dtype=dtype, device=device).expand(sizes).requires_grad_(wants_gradient)


def _not_empty(x: Tensor) -> Tensor:
    """Example with sizes of one in place of zero, which stands for those that no tracer knows as well."""
    if x.numel():
        return x
    return x.new_empty(1).expand([size or 1 for size in x.shape]).requires_grad_(x.requires_grad)


def _is_plain(one: Any) -> bool:
    """Whether an argument is one that choices are made for in graphs."""
    data = _data_of(one)
    return not isinstance(data, Tensor) or (type(data) in PLAIN and not data.is_nested)


def _called(implementation: nn.Module, parameters: dict[str, Tensor], *given: Any) -> Any:
    """Output of an implementation with a module's parameters, which it has during the call.

    What torch.func.functional_call does beside, for tied weights and names that are not there, takes Dynamo
    longer to trace than the implementation.
    """
    places: list[tuple[dict[str, Any], str]] = []
    for path in parameters:
        parent, _, name = path.rpartition(".")
        places.append((implementation.get_submodule(parent)._parameters, name))
    before = [of_module[name] for of_module, name in places]
    try:
        for (of_module, name), parameter in zip(places, parameters.values(), strict=True):
            of_module[name] = parameter
        return implementation(*given)
    finally:
        for (of_module, name), own in zip(places, before, strict=True):
            of_module[name] = own


def _is_looked_into(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether torch.export, torch.jit.trace or torch.fx traces the call, torch.func transforms it, or it has
    no tensor.
    """
    if _is_exporting() or torch._C._get_tracing_state() is not None or _is_transformed():
        return True
    if torch.compiler.is_compiling():  # which looks at an argument as soon as it is asked about one
        return False
    first = args[0] if args else next(iter(kwargs.values()), None)
    return not isinstance(first, (Tensor, PackedSequence))


@constant_in_graphs
def _is_exporting() -> bool:
    """Whether torch.export traces the call; torch.compile of torch 2.11 would take it for true."""
    return torch.compiler.is_exporting()


@constant_in_graphs
def _is_transformed() -> bool:
    """Whether a transform of torch.func is on."""
    return torch._C._are_functorch_transforms_active()


class OneInput(Selected):
    """Base class of modules with one tensor argument; subclasses define the selection."""

    def forward(self, input: Tensor) -> Tensor:
        """Output y of x, with the shapes of torch's module."""
        if not isinstance(self, OneInput):  # put back since a wrapper kept this function
            y: Tensor = type(self).forward(self, input)
        elif _is_looked_into((input,), {}):
            y = self._torchs(input)
        else:
            chosen = None if input.is_nested else self._chosen("", "_chosen_for_call", input)
            y = super().forward(input) if chosen is None else chosen(input)
        return y

    def _chosen_for_call(self, x: Tensor) -> nn.Module | None:
        """Implementation for x; None for torch's own forward."""
        raise NotImplementedError
