"""Random probes of the Python API: calls with arguments as text, their results in a library, and the differences between two
libraries.

A probe is a dictionary with the call's text, in which `a`, `b`, … are tensors; the tensors as texts; and its kind, which selects
whether gradients are computed, or results are compared as printed or after a round trip through a file. It runs with any library
that has PyTorch's names.
"""

import io
import math
import pathlib
import re

SIGNATURES = pathlib.Path(__file__).resolve().parent.parent / "signatures/torch.txt"
SHAPES = ["", "3", "2,3", "3,3", "2,3,3", "1,3", "0,3", "2,1", "4", "1,1,4,4", "2,2,4,4"]
FLOATS = ["float32", "float64", "float16", "bfloat16", "complex64"]
DTYPES = FLOATS + ["int64", "int32", "int16", "int8", "uint8", "bool"]
# The maximum relative differences, by dtype: kernels sum in different orders.
TOLERANCES = {"float64": 1e-7, "complex128": 1e-7, "float32": 2e-4, "complex64": 2e-4, "float16": 1e-2, "bfloat16": 5e-2}
TENSORS = set("""input self other tensor tensor1 tensor2 x y x1 x2 A B a b mat mat1 mat2 vec vec1 vec2 batch1 batch2 target condition mask src source
    index indices values end weight bias mean std var running_mean running_var query key value input1 input2 input3 anchor positive negative tau
    boundaries sorted_sequence repeats grid theta LU_data LU_pivots LU pivots abs angle real imag s M N_ n_ magnitude sections_ logits
    exponent min max log_probs targets input_lengths target_lengths attn_mask reflector cosine pos_weight hx offsets per_sample_weights""".split())
INTS = {"dim": (-3, 2), "dim0": (-2, 2), "dim1": (-2, 2), "dims": (0, 2), "k": (0, 3), "n": (0, 4), "N": (1, 4), "M": (0, 6), "diagonal": (-2, 2),
        "offset": (-1, 2), "axis": (-2, 2), "axis0": (-2, 1), "axis1": (-2, 1), "start": (-2, 2), "length": (0, 3), "step": (1, 2), "chunks": (1, 3),
        "sections": (1, 3), "split_size": (1, 3), "split_size_or_sections": (1, 3), "indices_or_sections": (1, 3), "num_classes": (3, 5),
        "groups": (1, 2), "num_groups": (1, 3), "upscale_factor": (1, 2), "downscale_factor": (1, 2), "start_dim": (-2, 1), "end_dim": (-2, 1),
        "kernel_size": (1, 3), "stride": (1, 2), "padding": (0, 1), "dilation": (1, 2), "output_size": (1, 3), "window_length": (0, 6),
        "decimals": (-1, 2), "bins": (1, 4), "row": (1, 3), "col": (1, 3), "steps": (0, 4), "high": (1, 5), "low": (0, 0), "correction": (0, 1),
        "dimension": (-2, 1), "size_": (1, 3), "q": (0, 1), "p": (0, 3), "num_samples": (1, 3), "minlength": (0, 3), "maxnorm": (1, 2)}
TEXTS = {"reduction": ["mean", "sum", "none"], "reduce": ["sum", "prod", "mean", "amax", "amin"], "mode": ["constant", "reflect", "nearest", "bilinear"],
         "rounding_mode": ["floor", "trunc"], "approximate": ["none", "tanh"], "norm": ["ortho", "forward", "backward"], "indexing": ["ij", "xy"],
         "UPLO": ["L", "U"], "side": ["left", "right"], "ord": ["fro", "nuc"], "interpolation": ["linear", "lower", "higher", "midpoint", "nearest"],
         "equation": ["ij,jk->ik", "ii", "ij->ji", "...i->..."], "nonlinearity": ["relu", "tanh", "leaky_relu"], "padding_mode": ["zeros", "border"]}
# Calls that programs make on a result. A probe may continue with some of these.
STEPS = ["exp()", "tanh()", "sum(-1)", "reshape(-1)", "t()", "float()", "double()", "sort()[0]", "unsqueeze(0)", "flip(0)", "mean()", "abs()",
         "clamp(-1, 1)", "view(-1)", "transpose(0, -1)", "max(0)[0]", "squeeze()", "repeat(2, 1)", "expand(2, -1)", "softmax(-1)", "cumsum(0)",
         "index_select(0, torch.tensor([0]))", "pow(2)", "detach()", "clone()", "T", "contiguous()", "half()", "unbind()[0]", "add(1)", "mul(0.5)"]
SIZES = ["3", "(2, 3)", "(3, 3)", "(1, 3)", "(6,)", "(-1,)", "(2, 3, 3)", "()"]
# The results of these are random or uninitialised: only shapes and dtypes are compared.
RANDOM = re.compile(r"(empty|rand|multinomial|bernoulli|dropout|normal|poisson|exponential_|uniform_|cauchy_|geometric_|rrelu|gumbel|fractional"
                    r"|lowrank|random_|resize|new\(|seed|init\.(kaiming|xavier|orthogonal|sparse|uniform|normal|trunc))")
# Eigenvectors and factors are not unique, and some results are addresses or names of the library.
LEFT_OUT = re.compile(
    r"(torch\.(save|load|compile|set_|manual_seed|seed|get_rng|from_|initial_seed|is_autocast|autocast|get_autocast|use_det|are_det|is_det|"
    r"get_(num|default|float32|device)|typename|is_storage|frombuffer|from_dlpack|utils|vmap|cond|while|fork|wait|is_warn|lobpcg|"
    r"cudnn|miopen|mkldnn|fbgemm|quantize|import_ir|is_vulkan|init_num|read_vital|set_vital|compiled|_|get_file|parse|unify|merge|prepare|classprop)"
    r"|Tensor\.(index$|data_ptr|storage|register|apply_|map|share|numpy|cuda|xpu|ipu|cpu|backward|type|record|pin|untyped|module_load|stride|get_device"
    r"|retain|detach_|requires_grad_|to_|data|__|new_tensor|reinforce|set_|is_shared|is_pinned|element_size|resize|rename|names|align|refine)"
    r"|optim\.|nn\.[A-Z]|linalg\.(eig|svd|qr|eigh|lu|ldl)|Tensor\.(svd|qr|lu|eig|geqrf)|torch\.(svd|qr|lu|geqrf|pca|lu_unpack))")


def lines():
    """Returns the signatures from which probes are generated: names and parameters."""
    found = []
    for line in SIGNATURES.read_text().splitlines():
        name, _, inner = line.partition("(")
        inner = inner.partition(" -> ")[0].rstrip(")")
        if not LEFT_OUT.match(name) and "?" not in inner:
            found.append((name, [part.strip() for part in re.findall(r"(?:[^,(]|\([^)]*\))+", inner) if part.strip()]))
    return found


def number(source, dtype):
    """Returns the text of a number of a dtype."""
    if dtype == "bool":
        return source.choice(["True", "False"])
    if not dtype.startswith(("float", "bfloat", "complex")):
        return str(source.randint(0 if dtype == "uint8" else -3, 4))
    if source.random() < 0.03:
        return source.choice(["float('inf')", "-float('inf')", "float('nan')", "-0.0"])
    text = str(source.randint(-12, 12) / 4)
    return f"{text}+{source.randint(-4, 4) / 4}j" if dtype.startswith("complex") else text


def nested(source, shape, dtype):
    if not shape:
        return number(source, dtype)
    return "[" + ", ".join(nested(source, shape[1:], dtype) for _ in range(shape[0])) + "]"


def tensor(source, dtype, shape):
    """Returns the text of a tensor."""
    extents = [int(part) for part in shape.split(",") if part]
    return f"torch.tensor({nested(source, extents, dtype)}, dtype=torch.{dtype})"


class Maker:
    """A probe under construction, with its tensors, most of which have the same dtype and shape."""

    def __init__(self, source):
        self.source, self.tensors = source, {}
        self.dtype = source.choice(FLOATS[:2]) if source.random() < 0.6 else source.choice(DTYPES)
        self.shape = source.choice(SHAPES)

    def tensor(self, name):
        dtype, shape = self.dtype, self.shape
        if name in ("index", "indices", "LU_pivots", "pivots", "offsets", "target_lengths", "input_lengths", "repeats"):
            dtype = "int64"
        elif name in ("condition", "mask"):
            dtype = "bool"
        elif self.source.random() < 0.1:
            dtype = self.source.choice(DTYPES)
        if self.source.random() < 0.25:
            shape = self.source.choice(SHAPES)
        key = "abcdefgh"[len(self.tensors) % 8]
        text = tensor(self.source, dtype, shape)
        if dtype == "int64" and name in ("index", "indices", "target"):
            text = re.sub(r"-?\d+(?=[,\]])", lambda match: str(abs(int(match[0])) % 3), text)
        self.tensors[key] = text
        return key

    def value(self, name, default):
        """Returns the text of an argument for a parameter with this name."""
        source = self.source
        if name == "tensors" or name == "matrices":
            return f"[{self.tensor('input')}, {self.tensor('other')}]"
        if name in ("other", "value", "fill_value", "min", "max", "exponent", "end", "alpha", "beta", "scalar") and source.random() < 0.4:
            return number(source, source.choice(["float32", "int64", "int64", "bool"])).replace("float('nan')", "0.5")
        if name in ("size", "shape", "sizes", "repeats", "normalized_shape", "s") and source.random() < 0.8:
            return source.choice(SIZES)
        if name in ("dim", "dims") and source.random() < 0.25:
            return source.choice(["(0,)", "(0, 1)", "(-1, -2)", "None", "()"])
        if name in ("dtype", "out_dtype"):
            return f"torch.{source.choice(DTYPES)}"
        if name in TEXTS and (default is None or source.random() < 0.7):
            return repr(source.choice(TEXTS[name]))
        if default in ("True", "False"):
            return source.choice(["True", "False"])
        if name in INTS:
            return str(source.randint(*INTS[name]))
        if name in TENSORS:
            return self.tensor(name)
        if default not in (None, "None", "..."):
            return repr(round(float(default) * source.choice([0.5, 1.0, 2.0]), 6)) if re.fullmatch(r"-?[\d.e-]+", default) else None
        return self.tensor(name) if source.random() < 0.5 else str(source.randint(0, 2))


def probe(source, signatures):
    """Returns a random probe."""
    name, parameters = source.choice(signatures)
    maker = Maker(source)
    receiver = maker.tensor("self") if name.startswith("Tensor.") else None
    if receiver is not None:
        parameters = parameters[1:]
    arguments, is_named = [], False
    for part in parameters:
        if part == "*" or part.startswith("**"):
            is_named = True
            continue
        own, _, default = part.partition("=")
        default = default or None
        if own.startswith("*"):
            arguments.append(f"*{maker.value(own[1:], None)}" if own[1:] in ("tensors", "matrices") else f"*{source.choice(SIZES[1:])}")
            is_named = True
            continue
        if own in ("out", "device", "layout", "pin_memory", "requires_grad", "generator", "memory_format", "names", "size_average", "reduce_",
                   "_stacklevel", "inplace", "sparse"):
            is_named |= default is not None
            continue
        if default is not None and source.random() < 0.6:
            is_named = True
            continue
        text = maker.value(own, default)
        if text is not None:
            arguments.append(f"{own}={text}" if is_named or source.random() < 0.1 else text)
            is_named |= "=" in arguments[-1].partition("(")[0]
    target = f"{receiver}.{name.removeprefix('Tensor.')}" if receiver else name if name.startswith("torch.") else f"torch.{name}"
    chosen = source.random()
    kind = "grad" if chosen < 0.45 else "print" if chosen < 0.6 else "file" if chosen < 0.65 else ""
    steps = [f".{source.choice(STEPS)}" for _ in range(source.randint(1, 4))] if source.random() < 0.2 else []
    return {"call": f"{target}({', '.join(arguments)}){''.join(steps)}", "tensors": maker.tensors, "kind": kind}


def plain(value):
    """Returns a result independent of a library: texts, numbers, and lists of them."""
    if hasattr(value, "dtype") and hasattr(value, "tolist") and hasattr(value, "requires_grad"):
        return ["tensor", str(value.dtype), list(value.shape), flat(value.detach())]
    if isinstance(value, (tuple, list)):
        fields = list(getattr(value, "_fields", ())) or [name for name in getattr(type(value), "__match_args__", ())]
        kind = "Size" if type(value).__name__ == "Size" else "tuple"
        return [kind, fields, [plain(one) for one in value]]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, complex)):
        return ["number", repr(value)]
    return ["object", str(value)]


def flat(value):
    """Returns the elements of a tensor as text."""
    def walk(part):
        return [text for one in part for text in walk(one)] if isinstance(part, list) else [repr(part)]
    return walk(value.tolist())


def run(library, probe):
    """Returns the outcome of a probe in a library: `["error", class]`, or its results and gradients."""
    scope = {"torch": library}
    try:
        for key, text in probe["tensors"].items():
            scope[key] = eval(text, scope)
            if probe["kind"] == "grad" and scope[key].is_floating_point():
                scope[key].requires_grad_()
        result = eval(probe["call"], scope)
        if probe["kind"] == "print":
            text = re.sub(r"(device='[\w:]+'|grad_fn=<\w+>|torch\.return_types\.(\w+_)?)", "", repr(result))
            return ["text", re.sub(r"[\s,]+", " ", text).replace(" )", ")")]
        if probe["kind"] == "file":
            file = io.BytesIO()
            library.save(result, file)
            file.seek(0)
            return [plain(library.load(file))]
        found = [plain(result)]
        if probe["kind"] == "grad":
            total = sum(one.sum() for one in (result if isinstance(result, (tuple, list)) else [result])
                        if hasattr(one, "requires_grad") and one.requires_grad and one.is_floating_point())
            if hasattr(total, "backward"):
                total.backward()
                found += [None if scope[key].grad is None else plain(scope[key].grad) for key in probe["tensors"]]
        return found
    except Exception as error:
        # An error that a kernel detects is reported by a later call.
        wait(library)
        return ["error", next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"), str(error)]


def wait(library):
    """Waits for a library's device, and drops the errors that its kernels have detected."""
    try:
        library.tensor(0.0).item()
        library.cuda.synchronize()
    except Exception:
        pass


def numbers_differ(one, other, tolerance, scale=1.0):
    """Returns whether two numbers differ by more than a fraction of the largest number near them."""
    if one == other:
        return False
    if "True" in (one, other) or "False" in (one, other):
        return True
    one, other = complex(one), complex(other)
    for first, second in ((one.real, other.real), (one.imag, other.imag)):
        if math.isnan(first) and math.isnan(second) or first == second:
            continue
        if not abs(first - second) <= tolerance * max(scale, abs(first), abs(second)):
            return True
    return False


def coarsest(probe):
    """Returns the largest allowed relative difference of the dtypes that a probe names."""
    text = " ".join([probe["call"], *probe["tensors"].values()])
    return max((value for name, value in TOLERANCES.items() if name in text), default=0.0)


def differs(ours, theirs, is_random=False, coarsest=0.0):
    """Returns how a result differs from PyTorch's, or None if it does not. `coarsest` is relative to the largest number."""
    if isinstance(theirs, list) and theirs and theirs[0] == "error":
        if isinstance(ours, list) and ours and ours[0] == "error":
            return None if ours[1] == theirs[1] else f"raises {ours[1]} instead of {theirs[1]}"
        return f"takes what PyTorch refuses ({theirs[1]})"
    if isinstance(ours, list) and ours and ours[0] == "error":
        return f"refuses: {ours[1]}: {ours[2][:200]}"
    if isinstance(theirs, list) and theirs and theirs[0] == "tensor":
        if not isinstance(ours, list) or ours[:1] != ["tensor"]:
            return f"another kind of result: {ours}"
        if ours[1].partition(".")[2] != theirs[1].partition(".")[2]:
            return f"dtype {ours[1]} instead of {theirs[1]}"
        if ours[2] != theirs[2]:
            return f"shape {ours[2]} instead of {theirs[2]}"
        tolerance = max(TOLERANCES.get(theirs[1].partition(".")[2], 0.0), coarsest if TOLERANCES.get(theirs[1].partition(".")[2]) else 0.0)
        scale = max((abs(complex(one)) for one in theirs[3] if math.isfinite(abs(complex(one)))), default=1.0) if tolerance else 1.0
        for one, other in zip(ours[3], theirs[3]) if not is_random else ():
            if numbers_differ(one, other, tolerance, scale):
                return f"number {one} instead of {other}"
        return None
    if isinstance(theirs, list) and isinstance(ours, list):
        if theirs[:1] == ["number"] and ours[:1] == ["number"]:
            return f"{ours[1]} instead of {theirs[1]}" if not is_random and numbers_differ(ours[1], theirs[1], 1e-4) else None
        if len(ours) != len(theirs):
            return f"{len(ours)} results instead of {len(theirs)}"
        return next((way for one, other in zip(ours, theirs) if (way := differs(one, other, is_random, coarsest))), None)
    return None if ours == theirs or is_random else f"{ours!r} instead of {theirs!r}"


def compared(probe, ours, theirs):
    """Returns how a library's result of a probe differs from PyTorch's."""
    # Gradients that PyTorch lacks do not count as a difference.
    if probe["kind"] == "grad" and len(theirs) == 1 and ours[:1] != ["error"]:
        ours = ours[:1]
    return differs(ours, theirs, bool(RANDOM.search(probe["call"])), coarsest(probe))
