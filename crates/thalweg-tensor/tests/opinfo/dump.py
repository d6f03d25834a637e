"""Dumps the samples of OpInfo, PyTorch's own database of operators, with the results of PyTorch's CPU backend.

    python3 dump.py --out goldens                              # the subset that the tests read
    python3 dump.py --out complex --dtypes complex64 --samples 2 --core-samples 2 --cap 400 --ops ...
    python3 dump.py --out full --samples 0 --core-samples 0 --cap 0 --dtypes float32,bfloat16,float16,int64,bool

A sample is stored as a *program*: the calls of ATen overloads that the Python function makes, seen above autograd and above
composite operators, with their arguments by the schema's names. `x[1:, 0]` is a call of `slice.Tensor` and one of `select.int`.
The tests replay the calls, and compare the results, the inputs that were written, shared storage, and gradients.

One file per operator, `NAME.gz`; unpacked: the length of the header (u64, little-endian), the header (JSON), raw bytes.

    name, core          the operator; whether it belongs to Core ATen
    inplace, out        whether OpInfo asks for these forms
    storages            [begin, length] in the raw bytes
    tensors             [dtype, shape, strides, offset, storage]; storage is null where values are not defined
    tolerances          variant -> dtype -> [relative, absolute], OpInfo's own
    forms               overload -> {"inplace": overload, "out": overload}
    overloads           every ATen overload that was called, also below composite operators
    samples             variant, dtype, then
      inputs            tensors; values 0..n of the program
      calls             [overload, {argument: value}, results]; results are numbers of values, lists of them, or {"value": v}
      outputs           [value, tensor]
      aliases           [output, input] that share storage
      mutated           [input, tensor]: what an input holds afterwards, where it was written
      strided           true where PyTorch gives the same for inputs with gaps between their elements
      random            true where values depend on a generator or are not initialised
      leaves            the inputs that require a gradient
      roots             the outputs that have one
      gradients         the gradients of the leaves (or null) for the roots' cotangents `pattern(shape, number of the output)`
      exact             {"outputs": .., "gradients": .., "second": ..} from the same inputs in f64; null where PyTorch's are as good as exact
      second            {"inputs": .., "cotangents": ..}: gradients of the gradients for `pattern(shape, 100 + number of the leaf)`
    errors              inputs and calls likewise; the last call raises: type, message, `matched` (the part that OpInfo asks for)
    dropped             how many samples and errors are left out, by reason

In arguments `{"t": 3}` is value 3, `{"dtype": ..}`, `{"memory_format": ..}`, `{"f": "inf"}`, `{"complex": [re, im]}` are what they
say; numbers, strings, booleans, lists and null stand for themselves. Arguments that equal the schema's default, and devices,
are left out.
"""
import argparse, gzip, hashlib, json, multiprocessing, os, random, re, struct, sys, time, warnings
from pathlib import Path

import numpy
import torch
import torchgen
from torch._dispatch.python import enable_python_dispatcher, no_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.testing._internal.common_device_type import precisionOverride, toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import DecorateInfo
from torch.testing._comparison import default_tolerances
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torchgen.gen import parse_native_yaml
from torchgen.model import SchemaKind

PACKAGED = Path(torchgen.__file__).parent / "packaged/ATen/native"
UNINITIALISED = ("empty", "new_empty", "resize")
# Nothing but the bookkeeping of constants that Python code makes.
BOOKKEEPING = ("aten::lift_fresh", "aten::detach_")


class Dropped(Exception):
    """A sample that cannot be stored; its text is the reason."""


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


def overload_name(function):
    schema = function._schema
    name = schema.name.removeprefix("aten::")
    return f"{name}.{schema.overload_name}" if schema.overload_name else name


def pattern(tensor, salt):
    """Returns numbers that every float dtype holds exactly: element i is ((5 i + 3 salt + 1) mod 17 - 8) / 8."""
    index = torch.arange(tensor.numel(), dtype=torch.int64)
    return (((5 * index + 3 * salt + 1) % 17 - 8).double() / 8).to(tensor.dtype).reshape(tensor.shape)


class Natives:
    """The functions of native_functions.yaml, with their properties."""

    def __init__(self):
        functions = parse_native_yaml(str(PACKAGED / "native_functions.yaml"), str(PACKAGED / "tags.yaml")).native_functions
        self.schemas = {str(f.func.name): str(f.func) for f in functions}
        self.core = {str(f.func.name) for f in functions if "core" in f.tags}
        self.core_names = {name.split(".")[0] for name in self.core}
        groups = {}
        for f in functions:
            groups.setdefault(f.func.signature(), {})[f.func.kind()] = str(f.func.name)
        self.forms = {}
        for group in groups.values():
            if SchemaKind.functional in group:
                kinds = {"inplace": SchemaKind.inplace, "out": SchemaKind.out}
                forms = {key: group[kind] for key, kind in kinds.items() if kind in group}
                self.forms[group[SchemaKind.functional]] = forms


class Blob:
    """The raw bytes and tables of a file. Equal bytes and equal tensors are stored once."""

    def __init__(self):
        self.bytes, self.storages, self.tensors = bytearray(), [], []
        self.storage_of, self.tensor_of = {}, {}

    def storage(self, data):
        key = hashlib.sha1(data).digest()
        if key not in self.storage_of:
            self.storage_of[key] = len(self.storages)
            self.storages.append([len(self.bytes), len(data)])
            self.bytes += data
        return self.storage_of[key]

    def row(self, tensor, strides, offset, data):
        storage = None if data is None else self.storage(data)
        row = [dtype_name(tensor.dtype), list(tensor.shape), list(strides), offset, storage]
        key = json.dumps(row)
        if key not in self.tensor_of:
            self.tensor_of[key] = len(self.tensors)
            self.tensors.append(row)
        return self.tensor_of[key]

    def packed(self, header):
        text = json.dumps({**header, "storages": self.storages, "tensors": self.tensors}, separators=(",", ":")).encode()
        return gzip.compress(struct.pack("<Q", len(text)) + text + bytes(self.bytes), 9, mtime=0)


def identity(tensor):
    """Returns a key that is equal for tensors with the same elements of one storage."""
    if tensor.layout != torch.strided:
        return id(tensor)
    return tensor.untyped_storage()._cdata, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()


def raw(tensor):
    """Returns the elements, row-major."""
    flat = torch.zeros(tensor.numel(), dtype=tensor.dtype)
    flat.reshape(tensor.shape).copy_(tensor.detach())
    return flat.view(torch.uint8).numpy().tobytes()


def storage_bytes(tensor):
    storage = tensor.detach().untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes()


def check_storable(tensor, cap):
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise Dropped("a tensor that is not strided")
    if tensor.dtype == torch.complex32:
        raise Dropped("complex32")
    if tensor.is_quantized or tensor.device.type != "cpu" or tensor.is_conj():
        raise Dropped("a tensor that is conjugated or quantized")
    if cap and tensor.untyped_storage().nbytes() > 64 * cap:
        raise Dropped("too large")


class Recorder(SchemaCheckMode):
    """Records the calls of ATen overloads that Python makes, above autograd and composite operators."""

    # PyTorch lets only modes of this class see calls so early.
    def __init__(self, inputs):
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)
        self.values = list(inputs)
        self.number = {id(tensor): index for index, tensor in enumerate(inputs)}
        self.constants, self.calls, self.is_random, self.raised = [], [], False, False
        self.alive = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function._schema.name in BOOKKEEPING:
            with no_python_dispatcher():
                result = function(*args, **kwargs)
            self.alive += [args, result]
            return result
        call = [overload_name(function), self.arguments(function._schema, args, kwargs), None]
        self.calls.append(call)
        name = function._schema.name.removeprefix("aten::")
        self.is_random |= torch.Tag.nondeterministic_seeded in function.tags
        self.is_random |= name.startswith(UNINITIALISED)
        try:
            with no_python_dispatcher():
                result = function(*args, **kwargs)
        except Exception:
            self.raised = True
            raise
        call[2] = [self.result(r) for r in (result if len(function._schema.returns) > 1 else [result])]
        return result

    def find(self, tensor):
        """Returns the number of a tensor, or None. What a factory returned reaches Python as a copy that shares its
        storage."""
        if id(tensor) in self.number:
            return self.number[id(tensor)]
        for index in reversed(range(len(self.values))):
            if identity(self.values[index]) == identity(tensor):
                self.alive.append(tensor)
                self.number[id(tensor)] = index
                return index
        return None

    def tensor(self, tensor):
        if self.find(tensor) is None:
            self.number[id(tensor)] = ("constant", len(self.constants))
            self.constants.append((tensor, tensor.detach().clone()))
        return self.number[id(tensor)]

    def result(self, result):
        if isinstance(result, torch.Tensor):
            if id(result) not in self.number:
                self.number[id(result)] = len(self.values)
                self.values.append(result)
            return self.number[id(result)]
        if isinstance(result, (list, tuple)):
            return [self.result(r) for r in result]
        return {"value": self.value(result)}

    def arguments(self, schema, args, kwargs):
        given = {argument.name: value for argument, value in zip(schema.arguments, args)} | kwargs
        found = {}
        for argument in schema.arguments:
            if argument.name not in given or argument.name in ("device", "pin_memory", "layout"):
                continue
            value = given[argument.name]
            is_tensor = any(isinstance(leaf, torch.Tensor) for leaf in tree_flatten(value)[0])
            if argument.has_default_value() and not is_tensor and value == argument.default_value:
                continue
            found[argument.name] = self.value(value)
        return found

    def value(self, value):
        if isinstance(value, torch.Tensor):
            return {"t": self.tensor(value)}
        if isinstance(value, (list, tuple)):
            return [self.value(v) for v in value]
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return value if abs(value) < float("inf") else {"f": str(value)}
        if isinstance(value, complex):
            return {"complex": [self.value(value.real), self.value(value.imag)]}
        if isinstance(value, torch.dtype):
            return {"dtype": dtype_name(value)}
        if isinstance(value, torch.memory_format):
            return {"memory_format": str(value).removeprefix("torch.")}
        if isinstance(value, torch.Generator):
            return {"generator": value.initial_seed()}
        raise Dropped(f"an argument of type {type(value).__name__}")


class Lowest(TorchDispatchMode):
    """Collects the overloads that remain after composite operators are decomposed."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(overload_name(function))
        return function(*args, **(kwargs or {}))


def seed(*what):
    number = int.from_bytes(hashlib.sha1(repr(what).encode()).digest()[:4], "little")
    torch.manual_seed(number)
    numpy.random.seed(number)
    random.seed(number)


def tensors_of(sample):
    leaves = tree_flatten([sample.input, sample.args, sample.kwargs])[0]
    unique = {id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}
    return list(unique.values())


def run(op, sample, inputs, process=True):
    """Runs a sample under a recorder. Returns the recorder and the resulting tensors."""
    recorder = Recorder(inputs)
    with enable_python_dispatcher(), recorder:
        result = op.op(sample.input, *sample.args, **sample.kwargs)
        if process:
            result = sample.output_process_fn_grad(result)
    return recorder, [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]


def widest(dtype):
    """Returns the dtype of the same kind in which PyTorch is practically exact, or the dtype itself if there is none."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


class Exact:
    """A sample with all its floating-point inputs in f64, and its complex ones in complex128."""

    def __init__(self, op, sample, inputs):
        copies = {}

        def copy(value):
            if isinstance(value, torch.dtype):
                return widest(value)
            if id(value) not in copies:
                wide = value.detach().to(widest(value.dtype), copy=True)
                copies[id(value)] = wide.requires_grad_(value.requires_grad)
            return copies[id(value)]

        self.op, self.sample = op, sample.transform(copy)
        self.inputs = [copy(t) for t in inputs]

    def run(self, entry):
        """Returns the outputs, the gradients of the entry's leaves and the gradients of these gradients; None for those
        that PyTorch cannot compute."""
        sample = self.sample
        try:
            result = sample.output_process_fn_grad(self.op.op(sample.input, *sample.args, **sample.kwargs))
            outputs = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]
            if "roots" not in entry:
                return outputs, [], []
            twice = "second" in entry
            roots = [outputs[k] for k in entry["roots"]]
            cotangents = [pattern(t, k).requires_grad_(twice) for k, t in zip(entry["roots"], roots)]
            leaves = [self.inputs[i] for i in entry["leaves"]]
            gradients = torch.autograd.grad(roots, leaves, cotangents, create_graph=twice, allow_unused=True)
            if not twice:
                return outputs, gradients, []
            again = [(n, t) for n, t in enumerate(gradients) if t is not None and t.requires_grad]
            directions = [pattern(t, 100 + n) for n, t in again]
            second = torch.autograd.grad([t for _, t in again], leaves + cotangents, directions, allow_unused=True)
            return outputs, gradients, second
        except (RuntimeError, IndexError, ValueError, TypeError):
            return [], [], []


class Operator:
    """The file of one name, while it is made."""

    def __init__(self, name, options, natives):
        self.name, self.options, self.natives = name, options, natives
        self.blob, self.samples, self.errors, self.dropped = Blob(), [], [], {}
        self.lowest, self.tolerances, self.inplace, self.out = set(), {}, False, False

    def drop(self, reason):
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def store_inputs(self, inputs, cap):
        for tensor in inputs:
            check_storable(tensor, cap)
        return [self.blob.row(t, t.stride(), t.storage_offset(), storage_bytes(t)) for t in inputs]

    def store_values(self, tensor, cap, values=True):
        """Stores a result: its strides, and its elements in row-major order."""
        tensor = tensor.resolve_conj().resolve_neg()
        check_storable(tensor, cap)
        return self.blob.row(tensor, tensor.stride(), 0, raw(tensor) if values else None)

    def constants(self, recorder, rows, cap):
        """Turns constants that Python code created into inputs, and renumbers the program."""
        if not recorder.constants:
            return lambda value: value
        count, more = len(rows), len(recorder.constants)
        for _, tensor in recorder.constants:
            check_storable(tensor, cap)
            rows.append(self.blob.row(tensor, tensor.stride(), tensor.storage_offset(), storage_bytes(tensor)))

        def renumber(value):
            if isinstance(value, tuple):
                return count + value[1]
            return value if value < count else value + more
        return renumber

    def program(self, recorder, rows, cap):
        renumber = self.constants(recorder, rows, cap)

        def walk(value, is_result):
            if isinstance(value, list):
                return [walk(v, is_result) for v in value]
            if isinstance(value, dict) and "t" in value:
                return {"t": renumber(value["t"])}
            return renumber(value) if is_result and not isinstance(value, dict) else value

        calls = []
        for name, arguments, results in recorder.calls:
            arguments = {key: walk(value, False) for key, value in arguments.items()}
            calls.append([name, arguments, None if results is None else walk(results, True)])
        return calls, renumber

    def add_sample(self, op, sample, dtype, cap):
        inputs = tensors_of(sample)
        rows = self.store_inputs(inputs, cap)
        before = [raw(t) for t in inputs]
        exact = Exact(op, sample, inputs) if dtype != widest(dtype) else None
        seed("run", self.name)
        recorder, outputs = run(op, sample, inputs)
        if not recorder.calls:
            raise Dropped("no ATen overload is called")
        for output in outputs:
            if recorder.find(output) is None:
                raise Dropped("a result that no ATen overload gave")
        is_random = recorder.is_random and self.differs(op, sample, inputs, before, outputs)
        calls, renumber = self.program(recorder, rows, cap)
        entry = {
            "variant": op.variant_test_name, "dtype": dtype_name(dtype), "inputs": rows, "calls": calls,
            "outputs": [[renumber(recorder.number[id(t)]), self.store_values(t, cap, not is_random)] for t in outputs],
        }
        storages = [t.untyped_storage().data_ptr() for t in inputs]
        entry["aliases"] = [
            [i, j] for i, output in enumerate(outputs) for j, storage in enumerate(storages)
            if storage and output.untyped_storage().data_ptr() == storage
        ]
        changed = [(i, t) for i, t in enumerate(inputs) if not is_random and raw(t) != before[i]]
        entry["mutated"] = [[i, self.store_values(t, cap)] for i, t in changed]
        if is_random:
            entry["random"] = True
        else:
            entry["strided"] = not entry["mutated"] and self.is_same_strided(op, sample, outputs)
            gradients, second = self.add_gradients(op, entry, dtype, inputs, outputs, cap)
            if exact:
                self.add_exact(op, entry, dtype, exact, outputs, gradients, second)
        self.samples.append({key: value for key, value in entry.items() if value or key in ("variant", "inputs", "outputs")})

    def differs(self, op, sample, inputs, before, outputs):
        """Returns whether another seed gives other values. Inputs that the first run has written are not restored; in
        that case it returns False."""
        if any(raw(t) != b for t, b in zip(inputs, before)):
            return True
        kept = [raw(t) for t in outputs]
        if any(call.startswith(UNINITIALISED) for call in self.called(op, sample, inputs)):
            return True
        return any(self.run_seeded(op, sample, inputs, number) != kept for number in range(1, 9))

    def run_seeded(self, op, sample, inputs, number):
        """Returns the results with another seed, also if the function of the database sets a seed itself."""
        own, torch.manual_seed = torch.manual_seed, lambda seed: own(seed + number)
        try:
            seed("another run", self.name)
            return [raw(t) for t in run(op, sample, inputs)[1]]
        finally:
            torch.manual_seed = own

    def called(self, op, sample, inputs):
        return [call[0] for call in run(op, sample, inputs)[0].calls]

    def is_same_strided(self, op, sample, outputs):
        try:
            with torch.no_grad():
                strided = sample.noncontiguous()
                found = strided.output_process_fn_grad(op.op(strided.input, *strided.args, **strided.kwargs))
        except Exception:
            return False
        found = [leaf for leaf in tree_flatten(found)[0] if isinstance(leaf, torch.Tensor)]
        return len(found) == len(outputs) and all(
            a.dtype == b.dtype and a.shape == b.shape and torch.allclose(a, b.detach(), rtol=1e-2, atol=1e-2, equal_nan=True)
            for a, b in zip(found, outputs))

    def add_gradients(self, op, entry, dtype, inputs, outputs, cap):
        leaves = [i for i, t in enumerate(inputs) if t.requires_grad]
        is_number = lambda t: t.dtype.is_floating_point or t.dtype.is_complex
        differentiable = [(k, t) for k, t in enumerate(outputs) if t.requires_grad and is_number(t)]
        if not leaves or not differentiable:
            return [], []
        twice = op.supports_gradgrad and dtype in (torch.float32, torch.float64)
        cotangents = [pattern(t, k).requires_grad_(twice) for k, t in differentiable]
        wanted = [inputs[i] for i in leaves]
        try:
            gradients = torch.autograd.grad(
                [t for _, t in differentiable], wanted, cotangents, create_graph=twice, allow_unused=True)
        except RuntimeError:
            self.drop("a gradient that PyTorch refuses")
            return [], []
        store = lambda t: None if t is None else self.store_values(t, cap)
        entry["leaves"], entry["roots"] = leaves, [k for k, _ in differentiable]
        entry["gradients"] = [store(t) for t in gradients]
        again = [(n, t) for n, t in enumerate(gradients) if t is not None and t.requires_grad]
        if not twice or not again:
            return gradients, []
        directions = [pattern(t, 100 + n) for n, t in again]
        try:
            second = torch.autograd.grad([t for _, t in again], wanted + cotangents, directions, allow_unused=True)
        except (RuntimeError, NotImplementedError):
            self.drop("a second gradient that PyTorch refuses")
            return gradients, []
        stored = [store(t) for t in second]
        entry["second"] = {"inputs": stored[: len(wanted)], "cotangents": stored[len(wanted):]}
        return gradients, second

    def add_exact(self, op, entry, dtype, exact, outputs, gradients, second):
        """Stores the results in f64 too, if PyTorch's differ from them by more than half of the tolerance."""
        relative, absolute = self.tolerances[op.variant_test_name][dtype_name(dtype)]

        def store(given, wanted):
            if given is None or wanted is None or given.shape != wanted.shape or given.dtype == widest(given.dtype):
                return None
            given, wanted = [t.detach().to(widest(t.dtype)) for t in (given, wanted)]
            if torch.allclose(given, wanted, rtol=relative / 2, atol=absolute / 2, equal_nan=True):
                return None
            return self.store_values(wanted, 0)

        found_outputs, found_gradients, found_second = exact.run(entry)
        kept = {
            "outputs": [store(a, b) for a, b in zip(outputs, found_outputs)] if len(outputs) == len(found_outputs) else [],
            "gradients": [store(a, b) for a, b in zip(gradients, found_gradients)],
        }
        again = [store(a, b) for a, b in zip(second, found_second)]
        if any(row is not None for row in again):
            kept["second"] = {"inputs": again[: len(entry["leaves"])], "cotangents": again[len(entry["leaves"]):]}
        if "second" in kept or any(row is not None for rows in kept.values() for row in rows):
            entry["exact"] = kept

    def add_error(self, op, error):
        sample = error.sample_input
        inputs = tensors_of(sample)
        rows = self.store_inputs(inputs, 0)
        recorder = Recorder(inputs)
        try:
            with enable_python_dispatcher(), recorder:
                op.op(sample.input, *sample.args, **sample.kwargs)
        except Dropped:
            raise
        except Exception as exception:
            raised = exception
        else:
            raise Dropped("an error input that PyTorch's CPU accepts")
        if not recorder.raised:
            raise Dropped("an error input that Python code refuses")
        message = str(raised)
        matched = re.search(error.error_regex, message)
        calls, _ = self.program(recorder, rows, 0)
        self.errors.append({
            "variant": op.variant_test_name, "inputs": rows, "calls": calls, "type": type(raised).__name__,
            "message": message.split("\nException raised from")[0], "matched": matched.group(0) if matched else None,
        })

    def walk_lowest(self, op, sample):
        try:
            with torch.no_grad(), Lowest() as lowest:
                op.op(sample.input, *sample.args, **sample.kwargs)
            self.lowest |= lowest.names
        except Exception:
            pass

    def header(self):
        called = {call[0] for sample in self.samples + self.errors for call in sample["calls"]}
        return {
            "name": self.name, "torch": torch.__version__.split("+")[0], "core": self.name in self.options.core,
            "inplace": self.inplace, "out": self.out, "tolerances": self.tolerances, "overloads": sorted(self.lowest | called),
            "forms": {name: self.natives.forms[name] for name in sorted(called) if self.natives.forms.get(name)},
            "dropped": dict(sorted(self.dropped.items())), "samples": self.samples, "errors": self.errors,
        }


def tolerances(op, dtypes):
    """Returns the loosest tolerances of OpInfo's tests."""
    found = {}
    for dtype in dtypes:
        relative, absolute = default_tolerances(dtype)
        for info in op.decorators:
            overrides = info.decorators if isinstance(info, DecorateInfo) else [info]
            for override in overrides:
                if isinstance(override, toleranceOverride) and dtype in override.d:
                    relative, absolute = max(relative, override.d[dtype].rtol), max(absolute, override.d[dtype].atol)
                if isinstance(override, precisionOverride) and dtype in override.d:
                    absolute = max(absolute, override.d[dtype])
        found[dtype_name(dtype)] = [relative, absolute]
    return found


def choose(samples, limit, name):
    """Returns a choice that depends on the seed, in the original order."""
    if not limit or len(samples) <= limit:
        return samples
    return [samples[i] for i in sorted(random.Random(name).sample(range(len(samples)), limit))]


def samples_of(op, dtype, limit, cap):
    needs_gradient = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    seed(op.name, op.variant_test_name, dtype)
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=needs_gradient))
    sizes = [max([t.untyped_storage().nbytes() for t in tensors_of(s)], default=0) for s in samples]
    # Where every sample is large, the smallest one stands for them.
    cap = max(cap, min(sizes, default=0)) if cap else max(sizes, default=0)
    small = [s for s, size in zip(samples, sizes) if size <= cap]
    return choose(small, limit, f"{op.name} {op.variant_test_name} {dtype}"), len(samples) - len(small)


def dump(name):
    """Makes one file, and returns its line of the table."""
    options, natives = OPTIONS, NATIVES
    file = Operator(name, options, natives)
    started = time.time()
    for op in op_db:
        if op.name != name:
            continue
        dtypes = [d for d in options.dtypes if d in op.supported_dtypes("cpu")]
        file.tolerances[op.variant_test_name] = tolerances(op, dtypes)
        file.inplace |= bool(op.get_inplace())
        file.out |= op.supports_out
        limit = options.core_samples if name in options.core else options.samples
        for dtype in dtypes:
            try:
                samples, large = samples_of(op, dtype, limit, options.cap)
            except Exception as exception:
                file.drop(f"samples that cannot be made: {type(exception).__name__}")
                continue
            for _ in range(large):
                file.drop("too large")
            for sample in samples:
                file.walk_lowest(op, sample)
            # The same again: what was just run may have written its inputs.
            for sample in samples_of(op, dtype, limit, options.cap)[0]:
                try:
                    file.add_sample(op, sample, dtype, options.cap)
                except Dropped as reason:
                    file.drop(str(reason))
                except Exception as exception:
                    file.drop(f"{type(exception).__name__}: {str(exception)[:80]}")
        add_errors(file, op)
    header = file.header()
    packed = file.blob.packed(header)
    if header["samples"] or header["errors"]:
        (options.out / f"{name}.gz").write_bytes(packed)
    return {"name": name, "bytes": len(packed), "samples": len(file.samples), "errors": len(file.errors),
            "seconds": time.time() - started, "dropped": header["dropped"], "overloads": header["overloads"]}


def add_errors(file, op):
    if op.error_inputs_func is None:
        return
    seed("errors", op.name)
    try:
        errors = list(op.error_inputs("cpu"))
    except Exception as exception:
        file.drop(f"errors that cannot be made: {type(exception).__name__}")
        return
    for error in errors:
        try:
            file.add_error(op, error)
        except Dropped as reason:
            file.drop(str(reason))


def write_schemas(natives, met, path):
    """Writes one schema per line: those of Core ATen, and of all other overloads that were called."""
    lines = []
    for name in sorted(natives.core | met):
        schema = natives.schemas.get(name)
        if schema is None:
            base, _, overload = name.partition(".")
            found = [s for s in torch._C._jit_get_schemas_for_operator(f"aten::{base}") if s.overload_name == overload]
            schema = str(found[0]).removeprefix("aten::") if found else None
        if schema:
            lines.append(schema)
    path.write_text("\n".join(lines) + "\n")


def write_core(natives, path):
    """Writes one overload of Core ATen per line, with its in-place form and its `out=` form; `-` if it has none."""
    forms = lambda name: [natives.forms.get(name, {}).get(form, "-") for form in ("inplace", "out")]
    path.write_text("".join(" ".join([name, *forms(name)]) + "\n" for name in sorted(natives.core)))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--ops", help="names, separated by commas; all if left out")
    parser.add_argument("--samples", type=int, default=6, help="samples per variant and dtype; 0 is all")
    parser.add_argument("--core-samples", type=int, default=200, help="likewise for operators of Core ATen")
    parser.add_argument("--cap", type=int, default=16384, help="bytes that a tensor of a sample may have; 0 is any number")
    parser.add_argument("--dtypes", default="float32,bfloat16,float16,int64,bool", help="float64 and others where asked for")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    options.dtypes = [getattr(torch, name) for name in options.dtypes.split(",")]
    return options


def prepare(options):
    global OPTIONS, NATIVES
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    NATIVES = Natives()
    options.core = {op.name for op in op_db if (op.aten_name or op.name) in NATIVES.core_names}
    OPTIONS = options


def main():
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    prepare(options)
    names = options.ops.split(",") if options.ops else sorted({op.name for op in op_db})
    rows = []
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=100) as pool:
        for row in pool.imap_unordered(dump, names):
            rows.append(row)
            if not sys.stderr.isatty():
                continue
            share = len(rows) * 40 // len(names)
            print(f"\r[{'#' * share}{'.' * (40 - share)}] {len(rows)}/{len(names)} {row['name']:40}", end="", file=sys.stderr)
    print(file=sys.stderr)
    met = {name for row in rows for name in row["overloads"]}
    if not options.ops:
        write_schemas(NATIVES, met, options.out / "schemas.txt")
        write_core(NATIVES, options.out / "core.txt")
    print(f"{'operator':44}{'bytes':>10}{'samples':>9}{'errors':>8}{'seconds':>9}  dropped")
    for row in sorted(rows, key=lambda row: -row["bytes"]):
        print(f"{row['name']:44}{row['bytes']:>10}{row['samples']:>9}{row['errors']:>8}{row['seconds']:>9.1f}  {row['dropped'] or ''}")
    total = [sum(row[key] for row in rows) for key in ("bytes", "samples", "errors")]
    print(f"{'all ' + str(len(rows)):44}{total[0]:>10}{total[1]:>9}{total[2]:>8}")


if __name__ == "__main__":
    main()
