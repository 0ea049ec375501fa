"""A twin of libcublasLt that multiplies in the memory of a CPU, and what is patched for it.

It takes what `cublaslt_library` passes, and returns status 7 where cuBLASLt would: `complaints` say why.
"""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from functools import partial, wraps

import torch
from torch.nn.functional import gelu

from kernel_selector.kernels.matmul import cublaslt, cublaslt_library

NOT_SUPPORTED, INVALID = 15, 7
DTYPES = {2: torch.float16, 14: torch.bfloat16}
TRANSPOSED_A, TRANSPOSED_B, EPILOGUE, BIAS_POINTER, AUX, AUX_STEP = 3, 4, 7, 8, 11, 12
BYTES = {TRANSPOSED_A: 4, TRANSPOSED_B: 4, EPILOGUE: 4, BIAS_POINTER: 8, AUX: 8, AUX_STEP: 8}
PREFERENCE_BYTES = {1: 8, 5: 4, 6: 4}  # workspace, and the alignments of A and B
RELU, BIAS, RELU_SLOPE, GELU, GELU_SLOPE, WITH_AUX = 2, 4, 8, 32, 64, 128
EPILOGUES = {
    *(1, BIAS, RELU, RELU | BIAS, RELU | WITH_AUX, RELU | BIAS | WITH_AUX, RELU_SLOPE | WITH_AUX),
    *(GELU, GELU | BIAS, GELU | WITH_AUX, GELU | BIAS | WITH_AUX, GELU_SLOPE | WITH_AUX),
}


class InvalidValue(Exception):
    """What cuBLASLt refuses."""


def demand(condition, words):
    if not condition:
        raise InvalidValue(words)


def function(method):
    """A function of the library: its status, which a test may set."""

    @wraps(method)
    def called(self, *args):
        if status := self.failing.get(method.__name__, 0):
            return status
        try:
            return method(self, *args) or 0
        except InvalidValue as error:
            self.complaints.append(str(error))
            return INVALID

    return called


class Twin:
    """The library. `algorithms` are workspaces in bytes and states, in the order of the heuristic.

    `named` are the places of those that it names for a number of rows, all where none are given. For the
    whole product `refused` ones are no good, and `needed` are workspaces other than the heuristic's.
    """

    def __init__(self):
        self.algorithms, self.failing = [(0, 0), (512, 0)], {}
        self.named, self.refused, self.needed = {}, set(), {}
        self.milliseconds = {}  # of an algorithm, by its place; 1 where none is given
        self.taken, self.complaints, self.asked = [], [], []
        self.created = self.destroyed = 0
        self.current, self.capturing, self.contexts = -1, False, []
        self._of = {}
        # a bound method takes no `argtypes`
        self.cublasLtMatmul = partial(self.cublasLtMatmul)

    def _new(self, out, value):
        self.created += 1
        out._obj.value = 4096 + self.created
        self._of[out._obj.value] = value

    def _destroy(self, descriptor):
        demand(self._of.pop(descriptor.value, None) is not None, "no descriptor, or destroyed twice")
        self.destroyed += 1

    @function
    def cublasLtCreate(self, out):
        self.contexts.append(self.current)
        out._obj.value = 7

    @function
    def cublasLtMatmulDescCreate(self, out, compute, scale):
        demand((compute.value, scale.value) == (68, 0), "not computed in float32")
        self._new(out, {EPILOGUE: 1, TRANSPOSED_A: 0, TRANSPOSED_B: 0})

    @function
    def cublasLtMatmulDescDestroy(self, descriptor):
        self._destroy(descriptor)

    @function
    def cublasLtMatmulDescSetAttribute(self, product, attribute, value, size):
        demand(size.value == BYTES[attribute.value], f"attribute {attribute.value} of {size.value} bytes")
        self._of[product.value][attribute.value] = value._obj.value

    @function
    def cublasLtMatrixLayoutCreate(self, out, kind, rows, columns, step):
        demand(kind.value in DTYPES, f"elements of kind {kind.value}")
        demand(0 < rows.value <= step.value and columns.value > 0, f"{step.value} apart, {rows.value} rows")
        self._new(out, (DTYPES[kind.value], rows.value, columns.value, step.value))

    @function
    def cublasLtMatrixLayoutDestroy(self, descriptor):
        self._destroy(descriptor)

    @function
    def cublasLtMatmulPreferenceCreate(self, out):
        self._new(out, {})

    @function
    def cublasLtMatmulPreferenceDestroy(self, descriptor):
        self._destroy(descriptor)

    @function
    def cublasLtMatmulPreferenceSetAttribute(self, preference, name, value, size):
        demand(size.value == PREFERENCE_BYTES[name.value], f"preference {name.value} of {size.value} bytes")
        self._of[preference.value][name.value] = value._obj.value

    @function
    def cublasLtMatmulAlgoGetHeuristic(self, _context, *given):
        product, a, b, c, d, preference, most, results, count = given
        self._sizes(product, a, b, c, d)
        given = self._of[preference.value]
        rows = self._of[d.value][2]  # of ours, which are the library's columns
        self.asked.append({"most": most.value, "rows": rows, **given})
        named = self.named.get(rows, range(len(self.algorithms)))
        fit = [place for place in named if self.algorithms[place][0] <= given[1]]
        for result, place in zip(results, fit[: most.value], strict=False):
            result.algorithm[0], result.algorithm[7] = place, 77
            result.workspace_bytes, result.state = self.algorithms[place]
        count._obj.value = min(len(fit), most.value)
        return 0 if fit else NOT_SUPPORTED

    @function
    def cublasLtMatmulAlgoCheck(self, context, *given):
        *sizes, algorithm, result = given
        demand(context.value == 7, "no context")
        self._sizes(*sizes)
        place = self._place(algorithm)
        if place in self.refused:
            return NOT_SUPPORTED
        result._obj.workspace_bytes = self._workspace(place)  # the algorithm itself is not written
        return 0

    @function
    def cublasLtMatmul(self, context, product, *given):
        alpha, a, of_a, b, of_b, beta, c, of_c, d, of_d, algorithm, workspace, size, stream = given
        demand(len(self.cublasLtMatmul.argtypes) == 16, "another number of arguments")
        demand((alpha._obj.value, beta._obj.value, c, stream) == (1, 0, d, 5), "not D = A B on the stream")
        demand(context.value == 7, "no context")
        place = self._place(algorithm)
        demand(place not in self.refused, "an algorithm that was refused")
        demand(size == self._workspace(place) and bool(size) == bool(workspace), "another workspace")
        ctypes.memset(workspace, 255, size)
        self._sizes(product, of_a, of_b, of_c, of_d)
        self.taken.append(place)
        given, out = self._of[product.value], self._matrix(d, of_d)
        z = self._operand(a, of_a, given[TRANSPOSED_A]) @ self._operand(b, of_b, given[TRANSPOSED_B])
        out.copy_(epilogue(z, given, out))

    def _place(self, algorithm):
        demand(algorithm._obj[7] == 77, "no algorithm")
        return algorithm._obj[0]

    def _workspace(self, place):
        return self.needed.get(place, self.algorithms[place][0])

    def _sizes(self, product, a, b, c, d):
        """Refuses sizes that do not fit together, and epilogues without what they need."""
        given = self._of[product.value]
        (_, *of_a, _), (_, *of_b, _), (_, *of_d, _) = (self._of[one.value] for one in (a, b, d))
        of_a, of_b = of_a[:: -1 if given[TRANSPOSED_A] else 1], of_b[:: -1 if given[TRANSPOSED_B] else 1]
        demand(of_a[1] == of_b[0] and [of_a[0], of_b[1]] == of_d, f"{of_a} by {of_b} to {of_d}")
        demand(len({self._of[one.value][0] for one in (a, b, c, d)}) == 1, "several dtypes")
        then = given[EPILOGUE]
        demand(then in EPILOGUES, f"epilogue {then}")
        demand(not then & BIAS or given.get(BIAS_POINTER), "no bias")
        if then & WITH_AUX:
            multiple = 128 if then & (RELU | RELU_SLOPE) else 8
            demand(given.get(AUX, 0) % 16 == 0 and given.get(AUX), "no auxiliary memory, or misaligned")
            demand(given[AUX_STEP] % multiple == 0, f"auxiliary columns {given[AUX_STEP]} apart")
            demand(given[AUX_STEP] >= of_d[0], "auxiliary columns overlap")

    def _matrix(self, address, layout):
        return matrix(address, *self._of[layout.value])

    def _operand(self, address, layout, transposed):
        found = self._matrix(address, layout).double()
        return found.t() if transposed else found


def matrix(address, dtype, rows, columns, step):
    """What lies at an address in columns."""
    elements = (columns - 1) * step + rows
    memory = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).as_strided((rows, columns), (1, step))


def bits(address, rows, columns, step):
    """A byte [columns, bytes] for 8 rows of each column, the least bit first, and the places of the bits."""
    return matrix(address, torch.uint8, -(-rows // 8), columns, step // 8).t(), torch.arange(8)


def epilogue(z, given, like):
    """What is written for a product z in float64; reads and writes the auxiliary memory."""
    then, (rows, columns) = given[EPILOGUE], z.shape
    if then & BIAS:
        z = z + matrix(given[BIAS_POINTER], like.dtype, rows, 1, rows).double()
    if then & (RELU | RELU_SLOPE) and then & WITH_AUX:
        memory, places = bits(given[AUX], rows, columns, given[AUX_STEP])
        if then & RELU_SLOPE:
            on = (memory[..., None] >> places & 1).flatten(1)[:, :rows].t()
            return z * on
        on = torch.ones(columns, memory.size(1) * 8, dtype=torch.uint8)  # what pads it is undefined
        on[:, :rows] = z.t() > 0
        memory.copy_((on.view(columns, -1, 8) << places).sum(-1))
    elif then & WITH_AUX:
        argument = matrix(given[AUX], like.dtype, rows, columns, given[AUX_STEP])
        if then & GELU_SLOPE:
            return z * slope_of_gelu(argument.double())
        argument.copy_(z)
    if then & RELU:
        return z.relu()
    return gelu(z, approximate="tanh") if then & GELU else z


def slope_of_gelu(x):
    return torch.ops.aten.gelu_backward(torch.ones_like(x), x, approximate="tanh")


def fake_event(twin):
    """A class of events whose time passes in the twin's products alone."""

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.place = len(twin.taken)

        def synchronize(self):
            assert not twin.capturing

        def elapsed_time(self, other):
            return sum(twin.milliseconds.get(one, 1.0) for one in twin.taken[self.place : other.place])

    return Event


def in_place(monkeypatch):
    """The twin as the library, with the CPU's tensors taken for a GPU's, which is of number -1."""
    twin = Twin()

    @contextmanager
    def on(device):
        before, twin.current = twin.current, device
        yield
        twin.current = before

    for cached in (cublaslt_library.context, cublaslt_library._matmul):
        cached.cache_clear()
    monkeypatch.setattr(cublaslt_library, "load", lambda: twin)
    monkeypatch.setattr(cublaslt, "_plans", {})
    monkeypatch.setattr(cublaslt, "row_sums", lambda one, dtype: one.sum(0, dtype=torch.float32).to(dtype))
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda one: one.device.type == "cpu"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: twin.current)
    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: twin.capturing)
    monkeypatch.setattr(torch.cuda, "Event", fake_event(twin))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _device: 5, raising=False)
    return twin
