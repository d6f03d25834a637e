"""The check whether a replay may replace a call of a function: whether the values that the function reads besides its
arguments are unchanged, and whether it has effects."""

import builtins
import dis
import itertools
import operator
import pathlib
import sys
import types

from . import _core

PACKAGE = str(pathlib.Path(__file__).parent)
_STANDARD = str(pathlib.Path(types.__file__).parent)
_OS = str(pathlib.Path(_STANDARD, "os.py"))
_ATOMS = (int, float, bool, str, bytes, complex, type(None), type(Ellipsis), range, slice, types.CodeType)
# Functions in C of these modules have no effect but their result, which depends on their arguments alone.
_PURE = {"math", "cmath", "operator", "_operator", "itertools", "functools", "_functools", "_collections", "collections", "_abc", "_struct",
         "_thread", "_weakref", "_sre", "re", "typing", "_typing", "enum", "copy"}
_EFFECTS = {"print", "input", "open", "exec", "eval", "compile", "breakpoint", "__import__"}
_VALUES = (list, dict, tuple, set, frozenset, str, bytes, bytearray, int, float, complex, bool, type, slice, range, types.GeneratorType,
           types.MappingProxyType, types.CodeType, types.FunctionType, types.MethodType, types.FrameType, types.NoneType)
_CONTENTS = operator.attrgetter("cell_contents")
# Functions that read or write an attribute by a name that is their second argument, and names that lead to all attributes.
_BY_NAME, _ALL_NAMES = {"getattr", "setattr", "hasattr", "delattr"}, {"vars", "__dict__", "globals"}
_VIEWS = tuple(type(view) for view in ({}.keys(), {}.values(), {}.items())) + (memoryview,)
# The number of values that a watch lists before the function counts as too large.
MOST = 100_000


class Refused(Exception):
    """A function cannot be captured, for the reason in the text."""


def _root(name):
    return (name or "").partition(".")[0]


def _is_ours(code):
    return code.co_filename.startswith(PACKAGE) or code.co_filename.startswith("<frozen")


def _is_standard(file):
    return file is None or file.startswith(_STANDARD) and "site-packages" not in file


def _names(code):
    """Returns the names that code, and the code in it, reads: also as texts, for `getattr`."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            found.add(constant)
    return found


def _is_of_a_caller(frame, outside, word, value):
    """Returns whether a cell's content is a variable of a function that runs inside of a frame, so that each call makes it anew."""
    while (frame := frame.f_back) not in (None, outside):
        if word in frame.f_code.co_cellvars and frame.f_locals.get(word) is value:
            return True
    return False


def _takes_any_name(code):
    """Returns whether code, or the code in it, reads attributes or globals by names that are not written there."""
    if _ALL_NAMES.intersection(code.co_names):
        return True
    if _BY_NAME.intersection(code.co_names):
        steps = list(dis.get_instructions(code))
        reads = [place for place, step in enumerate(steps) if step.opname.startswith("LOAD_") and step.argval in _BY_NAME]
        if not all(_second_is_text(steps[place + 1:]) for place in reads):
            return True
    return any(_takes_any_name(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))


def _second_is_text(steps):
    """Returns whether the second argument of a call, whose arguments these instructions push, is a text of the program."""
    depth = 0
    for step in steps:
        if step.opname != "PUSH_NULL":
            depth += dis.stack_effect(step.opcode, step.arg, jump=False)
        if depth >= 2 or depth < 0:
            return depth == 2 and step.opname == "LOAD_CONST" and isinstance(step.argval, str)
    return False


class Watch:
    """The values that a function can reach: globals, cells, attributes and items. It `holds` while each is the object that it was.

    Of a module of the program, of a class and of an object, the attributes are watched that any function in reach names. Of a
    `torch.nn.Module` all attributes are watched, and of everything if a function in reach takes attributes by names that it computes."""

    def __init__(self, function, roots=()):
        self.refusal, self.tensors, self._places = None, [], []
        # The places of the gradients of tensors, if functions in reach read them.
        self._gradients = []
        self._dicts, self._lists, self._cells, self._attributes, self._sizes = [], [], [], [], []
        self._seen, self._kept, self._watched, self._entered = set(), [], set(), set()
        # Objects whose attributes are found by name, the names, and the functions of classes that were found.
        self._named, self._words, self._has_any_name = [], set(), False
        self._reach(function, getattr(function, "__qualname__", type(function).__qualname__))
        for root in roots:
            self._reach(root, type(root).__qualname__)
        self.complete()

    def complete(self):
        """Follows the names that were found, and notes the places of tensors."""
        former = None
        while former != (former := (len(self._words), len(self._named), len(self._attributes), len(self._kept))):
            for space, name in list(self._named):
                for word in self._words.intersection(space):
                    self._attribute(space, word, f"{name}.{word}")
                if self._has_any_name and isinstance(space, dict):
                    self._all(space, name)
        self._places += _core._places(self.tensors[len(self._places):])
        if "grad" in self._words:
            self._gradients += _core._gradient_places(self.tensors[len(self._gradients):])
        self._settle()

    def _settle(self):
        """Sorts the watched values into lists that are compared without a loop of Python."""
        containers = [*self._dicts, *self._lists]
        self._empty = [own for _, own, values in containers if not values]
        full = [(own, values) for _, own, values in containers if values]
        self._sized = [own for own, _ in full] + [own for _, own, _ in self._sizes]
        self._lengths = [len(values) for _, values in full] + [count for *_, count in self._sizes]
        self._parts = [own.values() if isinstance(own, dict) else own for own, _ in full]
        self._values = [value for _, values in full for value in values]
        self._contents, self._found = [value for _, _, value in self._cells], [value for *_, value in self._attributes]
        self._own_cells = [cell for _, cell, _ in self._cells]
        self._spaces, self._keys = [space for _, space, _, _ in self._attributes], [word for _, _, word, _ in self._attributes]

    def holds(self):
        """Returns whether everything is as it was."""
        same = operator.is_
        try:
            return (not any(self._empty) and list(map(len, self._sized)) == self._lengths
                    and all(map(same, itertools.chain.from_iterable(self._parts), self._values))
                    and all(map(same, map(_CONTENTS, self._own_cells), self._contents))
                    and all(map(same, map(operator.getitem, self._spaces, self._keys), self._found))
                    and _core._places(self.tensors) == self._places
                    and (not self._gradients or _core._gradient_places(self.tensors) == self._gradients))
        except (KeyError, ValueError):
            return False

    def changed(self):
        """Returns the name of a value that is not as it was."""
        for name, own, values in self._dicts:
            if len(own) != len(values):
                return name
            for key, one, other in zip(own, own.values(), values):
                if one is not other:
                    return f"{name}.{key}"
        for name, own, values in self._lists:
            if len(own) != len(values) or any(map(operator.is_not, own, values)):
                return name
        for name, cell, value in self._cells:
            if cell.cell_contents is not value:
                return name
        for name, space, word, value in self._attributes:
            if space.get(word, _core) is not value:
                return name
        for name, own, count in self._sizes:
            if len(own) != count:
                return f"the attributes of {name}"
        return "the memory of a tensor"

    def reach_code(self, code, space):
        """Lists the values that code reads by names of a module."""
        if id(code) in self._seen or _is_ours(code):
            return
        self._seen.add(id(code))
        self._kept.append(code)
        if _is_standard(code.co_filename):
            return
        words = _names(code)
        self._words |= words
        if _takes_any_name(code):
            self._has_any_name = True
            if "globals" in words:
                self._all(space, "the globals")
        for word in words.intersection(space):
            self._attribute(space, word, word)

    def reach_contents(self, frame, outside):
        """Lists the values that a function which is called inside of a frame reads from its cells, unless it was
        reached in a different way."""
        if id(frame.f_code) not in self._entered and not _is_standard(frame.f_code.co_filename):
            self._entered.add(id(frame.f_code))
            own = frame.f_locals
            for word in frame.f_code.co_freevars:
                if word in own and not _is_of_a_caller(frame, outside, word, own[word]):
                    self._reach(own[word], word)

    def _all(self, space, name):
        """Lists all attributes, and follows those that are containers."""
        if (id(space), None) not in self._watched:
            self._watched.add((id(space), None))
            self._dicts.append((name, space, tuple(space.values())))
            for word, value in list(space.items()):
                if isinstance(value, (list, dict, tuple, set, bytearray)):
                    self._reach(value, f"{name}.{word}")

    def _attribute(self, space, word, name):
        if (id(space), word) not in self._watched:
            self._watched.add((id(space), word))
            value = space[word]
            self._attributes.append((name, space, word, value))
            self._reach(value, name)

    def _reach(self, value, name):
        """Lists the values that can be reached from a value."""
        if isinstance(value, _ATOMS) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._kept.append(value)
        if len(self._kept) > MOST:
            self.refusal = f"it reaches more than {MOST} objects"
            return
        if isinstance(value, _core.Tensor):
            self.tensors.append(value)
            if own := getattr(value, "__dict__", None):
                self._named.append((own, name))
        elif isinstance(value, types.BuiltinMethodType) and not isinstance(value.__self__, types.ModuleType):
            self._reach(value.__self__, name)
        elif isinstance(value, types.FunctionType):
            self._reach_function(value, name)
        elif isinstance(value, types.MethodType):
            self._reach(value.__func__, name)
            self._reach(value.__self__, "self")
        elif isinstance(value, (staticmethod, classmethod)):
            self._reach(value.__func__, name)
        elif isinstance(value, property):
            self._reach(value.fget, name)
        elif isinstance(value, (list, tuple, set, frozenset, bytearray)):
            if not isinstance(value, tuple):
                self._lists.append((name, value, tuple(value)))
            for place, part in enumerate(value):
                self._reach(part, f"{name}[{place}]")
        elif isinstance(value, dict):
            self._dicts.append((name, value, tuple(value.values())))
            for key, part in list(value.items()):
                self._reach(part, f"{name}[{key!r}]")
        elif isinstance(value, types.ModuleType):
            file = getattr(value, "__file__", None)
            is_of_the_program = value.__name__ not in sys.builtin_module_names if file is None else not _is_standard(file)
            if _root(value.__name__) not in ("thalweg", "torch") and is_of_the_program:
                self._named.append((vars(value), name))
        elif isinstance(value, type):
            self._reach_class(value, name)
        else:
            self._reach_object(value, name)

    def _reach_function(self, function, name):
        code = function.__code__
        if _is_ours(code):
            # A decorator of the package, such as `no_grad`, around a function of the program.
            if not hasattr(function, "__wrapped__"):
                return
            self._reach(function.__wrapped__, name)
        for word, cell in zip(code.co_freevars, function.__closure__ or ()):
            try:
                content = cell.cell_contents
            except ValueError:
                continue
            self._cells.append((word, cell, content))
            self._reach(content, word)
        own = vars(function)
        self._named.append((own, name))
        self._sizes.append((name, own, len(own)))
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._reach(default, name)
        self.reach_code(code, function.__globals__)

    def _reach_class(self, kind, name):
        for base in kind.__mro__:
            if _root(base.__module__) not in ("thalweg", "torch", "builtins") and id(vars(base)) not in self._watched:
                self._watched.add(id(base))
                self._named.append((base.__dict__, kind.__qualname__))
                self._kept.append(base)

    def _reach_object(self, value, name):
        kind, own = type(value), getattr(value, "__dict__", None)
        if hasattr(kind, "__next__"):
            self.refusal = self.refusal or f"it may read from {name}, an iterator"
            return
        self._reach(kind, kind.__qualname__)
        if hasattr(kind, "register_forward_pre_hook"):
            self._words.add("forward")
            self._dicts.append((name, own, tuple(own.values())))
            for key, part in list(own.items()):
                self._reach(part, key if key.startswith("_") else f"{name}.{key}")
            return
        if kind.__module__ == "functools" and hasattr(value, "func"):
            self._reach((value.func, value.args, value.keywords), name)
        elif isinstance(own, dict) and "__wrapped__" in own:
            self._reach(own["__wrapped__"], name)
        self._words.add("__call__")
        if isinstance(own, dict):
            self._named.append((own, name))
            self._sizes.append((name, own, len(own)))
        slots = [word for base in kind.__mro__ for word in getattr(base, "__slots__", ())]
        is_known = callable(value) or _root(kind.__module__) in ("thalweg", "torch", "builtins", "re", "enum", "_thread", "weakref", "types")
        if slots and not is_known or not isinstance(own, dict) and not is_known or isinstance(value, _VIEWS):
            self.refusal = self.refusal or f"it may read {name}, a {kind.__qualname__}, whose changes are not noticed"


class Observer:
    """A region in which calls of C functions are observed: the first one that may have an effect is the refusal."""

    def __init__(self, watch):
        self.refusal, self._watch, self._former, self._outside = None, watch, None, None

    def __enter__(self):
        self._former, self._outside = sys.getprofile(), sys._getframe(1)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_):
        sys.setprofile(self._former)
        self._outside = None
        self._watch.complete()

    def _note(self, frame, event, called):
        code = frame.f_code
        if event == "call":
            self._watch.reach_code(code, frame.f_globals)
            if code.co_freevars and not _is_ours(code):
                self._watch.reach_contents(frame, self._outside)
            if code.co_filename == "<frozen os>" or code.co_filename == _OS:
                self.refusal = self.refusal or "it reads the environment or the file system"
        elif event == "c_call" and self.refusal is None and not _is_ours(code) and not _is_pure(called):
            module = getattr(called, "__module__", None)
            name = f"{module}.{called.__name__}" if module and module != "builtins" else called.__name__
            self.refusal = f"it calls {name} ({code.co_filename}:{frame.f_lineno}), which a replay would not repeat"


def _is_pure(called):
    """Returns whether a function in C has no effect but its result, which depends on its arguments alone."""
    owner, module = getattr(called, "__self__", None), getattr(called, "__module__", None)
    if owner is builtins:
        return called.__name__ not in _EFFECTS
    if isinstance(owner, types.ModuleType):
        return owner.__name__ in _PURE or _root(owner.__name__) in ("thalweg", "torch")
    if owner is not None:
        return _has_no_effect(owner if isinstance(owner, type) else type(owner))
    if hasattr(called, "__objclass__"):
        return _has_no_effect(called.__objclass__)
    return module in _PURE or _root(module) in ("thalweg", "torch") or getattr(_core, called.__name__, None) is called


def _has_no_effect(kind):
    return issubclass(kind, _VALUES) or _root(kind.__module__) in ("thalweg", "torch", "builtins", *_PURE)
