"""The states of modules: collecting them, and loading them so that a call that fails changes nothing."""

import collections
import collections.abc
import functools
import threading
import warnings
import weakref

from .. import _core
from .parameter import Parameter, is_lazy

_IncompatibleKeys = type("_IncompatibleKeys", (collections.namedtuple("IncompatibleKeys", ["missing_keys", "unexpected_keys"]),), {
    "__slots__": (), "__repr__": lambda self: "<All keys matched successfully>" if not (self.missing_keys or self.unexpected_keys)
    else f"_IncompatibleKeys(missing_keys={self.missing_keys!r}, unexpected_keys={self.unexpected_keys!r})"})
_IncompatibleKeys.__str__ = _IncompatibleKeys.__repr__
EXTRA = "_extra_state"
# The changes of the current load on this thread. They are made after the walk through the modules has found no error.
_walk = threading.local()


class States:
    """The part of a module that collects and loads states."""

    def get_extra_state(self):
        """Returns the state that is not in tensors. A subclass that has such state returns it here, and loads it in
        `set_extra_state`."""
        raise RuntimeError("Reached a code path in Module.get_extra_state() that should never be called.")

    def set_extra_state(self, state):
        """Loads a value that `get_extra_state` returned."""
        raise RuntimeError("Reached a code path in Module.set_extra_state() that should never be called.")

    def _overrides(self, name):
        return getattr(type(self), name) is not getattr(States, name)

    def _own_state(self):
        persistent = {name: buffer for name, buffer in self._buffers.items() if name not in self._non_persistent_buffers_set}
        return {name: tensor for name, tensor in {**self._parameters, **persistent}.items() if tensor is not None}

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        """Adds the tensors of this module to a dictionary, without those of its children."""
        for name, tensor in self._own_state().items():
            destination[prefix + name] = tensor if keep_vars or is_lazy(tensor) else tensor.detach()
        if self._overrides("get_extra_state"):
            destination[prefix + EXTRA] = self.get_extra_state()

    def state_dict(self, *args, destination=None, prefix="", keep_vars=False):
        """Returns parameters and persistent buffers by name. They share memory with the module."""
        if args:
            warnings.warn("Positional args are being deprecated, use kwargs instead.", FutureWarning, stacklevel=2)
            given = dict(zip(("destination", "prefix", "keep_vars"), args))
            destination = given.get("destination") if destination is None else destination
            prefix, keep_vars = prefix or given.get("prefix", ""), keep_vars or given.get("keep_vars", False)
        if destination is None:
            destination = collections.OrderedDict()
            destination._metadata = collections.OrderedDict()
        metadata = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = metadata
        for hook in list(self._state_dict_pre_hooks.values()):
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, module in self._modules.items():
            if module is not None:
                module.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in list(self._state_dict_hooks.values()):
            given = hook(self, destination, prefix, metadata)
            if given is not None and getattr(hook, "_from_public_api", False):
                raise RuntimeError("state_dict post-hook must return None")
            destination = destination if given is None else given
        return destination

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs):
        """Loads the tensors of this module, without those of its children. Reports missing, unexpected and wrong ones."""
        for hook in list(self._load_state_dict_pre_hooks.values()):
            hook(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        assign, own = local_metadata.get("assign_to_params_buffers", False), self._own_state()
        for name, tensor in own.items():
            if prefix + name in state_dict:
                self._load_tensor(name, prefix + name, tensor, state_dict[prefix + name], assign, error_msgs)
            elif strict:
                missing_keys.append(prefix + name)
        if self._overrides("set_extra_state"):
            if prefix + EXTRA in state_dict:
                _change(lambda: self.set_extra_state(state_dict[prefix + EXTRA]))
            elif strict:
                missing_keys.append(prefix + EXTRA)
        elif strict and prefix + EXTRA in state_dict:
            unexpected_keys.append(prefix + EXTRA)
        for key in state_dict if strict else ():
            if key.startswith(prefix) and key != prefix + EXTRA:
                first, is_deeper, _ = key[len(prefix):].partition(".")
                if first not in (self._modules if is_deeper else own):
                    unexpected_keys.append(key)

    def _load_tensor(self, name, key, tensor, saved, assign, error_msgs):
        if not isinstance(saved, _core.Tensor):
            error_msgs.append(f'While copying the parameter named "{key}", expected torch.Tensor or Tensor-like object from checkpoint but received '
                              f"{type(saved)}")
            return
        if is_lazy(saved) or is_lazy(tensor):
            self._load_without_shape(key, tensor, saved, error_msgs)
            return
        saved = tensor._loaded(saved) if hasattr(tensor, "_loaded") else saved
        if tensor.dim() == 0 and tuple(saved.shape) == (1,):
            saved = saved[0]
        if tuple(saved.shape) != tuple(tensor.shape):
            error_msgs.append(f"size mismatch for {key}: copying a param with shape {saved.shape} from checkpoint, the shape in current model is "
                              f"{tensor.shape}.")
            return
        if assign:
            _change(lambda: self._assign(name, tensor, saved))
            return
        is_meta, from_meta = tensor.device.type == "meta", saved.device.type == "meta"
        if is_meta and not from_meta:
            warnings.warn(f"for {key}: copying from a non-meta parameter in the checkpoint to a meta parameter in the current model, which is a "
                          "no-op. (Did you mean to pass `assign=True` to assign items in the state dictionary to their corresponding key in the "
                          "module instead of copying them in place?)", stacklevel=4)
        elif from_meta and not is_meta:
            error_msgs.append(f'While copying the parameter named "{key}", whose dimensions in the model are {tensor.size()} and whose dimensions in '
                              f"the checkpoint are {saved.size()}, an exception occurred : ('Cannot copy out of meta tensor; no data!',).")
        else:
            _change(lambda: tensor.copy_(saved))

    @staticmethod
    def _load_without_shape(key, tensor, saved, error_msgs):
        """Gives a tensor without a shape that of a saved one. If the saved one has no shape either, there is nothing to load."""
        def change():
            tensor.materialize(saved.shape)
            tensor.copy_(saved)
        if not is_lazy(saved):
            _change(change)
        elif not is_lazy(tensor):
            error_msgs.append(f'While copying the parameter named "{key}": Can\'t access the shape of an uninitialized parameter or buffer. Run a '
                              "forward pass of the module that was saved before its state is loaded into one that has shapes.")

    def _assign(self, name, tensor, saved):
        """Replaces a parameter or a buffer with a saved tensor."""
        if isinstance(tensor, Parameter):
            if isinstance(saved, Parameter):
                saved.requires_grad_(tensor.requires_grad)
            else:
                saved = Parameter(saved, requires_grad=tensor.requires_grad)
        setattr(self, name, saved)

    def load_state_dict(self, state_dict, strict=True, assign=False):
        """Overwrites parameters and persistent buffers with saved ones, converted and moved. With `assign`, the saved tensors
        themselves are used."""
        if not isinstance(state_dict, collections.abc.Mapping):
            raise TypeError(f"Expected state_dict to be dict-like, got {type(state_dict)}.")
        metadata, state_dict = getattr(state_dict, "_metadata", None), collections.OrderedDict(state_dict)
        if metadata is not None:
            state_dict._metadata = metadata
        keys, errors, hooks = _IncompatibleKeys([], []), [], []
        former, _walk.changes = getattr(_walk, "changes", None), []
        try:
            self._walk_states(state_dict, "", metadata or {}, assign, (keys, errors, hooks))
            changes = _walk.changes
        finally:
            _walk.changes = former
        if not hooks:
            self._refuse(keys, errors, strict)
        self._refuse(_IncompatibleKeys([], []), errors, strict)
        mode = _core._set_grad_enabled(False)
        try:
            for change in changes:
                change()
        finally:
            _core._set_grad_enabled(mode)
        shown, since = _IncompatibleKeys([], []), (0, 0)
        for module, hook, until in hooks:
            since = _show(shown, keys, since, until)
            if hook(module, shown) is not None:
                raise AssertionError("Hooks registered with ``register_load_state_dict_post_hook`` are not expected to return new values, if "
                                     "incompatible_keys need to be modified, it should be done inplace.")
        _show(shown, keys, since, map(len, keys))
        self._refuse(shown, errors, strict)
        return shown

    def _walk_states(self, state, prefix, metadata, assign, found):
        """Collects the changes of a load in a module and all its submodules."""
        (keys, errors, hooks), own = found, dict(metadata.get(prefix[:-1], {}))
        if assign:
            own["assign_to_params_buffers"] = assign
        self._load_from_state_dict(state, prefix, own, True, *keys, errors)
        for name, module in self._modules.items():
            if module is not None:
                deeper = f"{prefix}{name}."
                module._walk_states({key: value for key, value in state.items() if key.startswith(deeper)}, deeper, metadata, assign, found)
        hooks.extend((self, hook, tuple(map(len, keys))) for hook in self._load_state_dict_post_hooks.values())

    def _refuse(self, keys, errors, strict):
        texts = list(errors)
        for kind, names in (("Unexpected", keys.unexpected_keys), ("Missing", keys.missing_keys)) if strict else ():
            if names:
                listed = ", ".join(f'"{name}"' for name in names)
                texts.insert(0, f"{kind} key(s) in state_dict: {listed}. ")
        if texts:
            raise RuntimeError(f"Error(s) in loading state_dict for {type(self).__name__}:\n\t" + "\n\t".join(texts))


def _show(shown, keys, since, until):
    """Adds the keys that the next modules have found, between two counts, to the lists that hooks may change. Returns
    the latter counts."""
    for own, found, first, end in zip(shown, keys, since, until):
        own.extend(found[first:end])
    return until


def _change(change):
    """Makes a change after the load has found no error, or immediately outside of a load."""
    changes = getattr(_walk, "changes", None)
    if changes is not None:
        changes.append(change)
        return
    mode = _core._set_grad_enabled(False)
    try:
        change()
    finally:
        _core._set_grad_enabled(mode)


class WithModule:
    """A hook that is called with a module as first argument."""

    def __init__(self, hook, module):
        # The module owns the hook, so the hook must not keep the module alive.
        self.hook, self._module = hook, weakref.ref(module)
        functools.update_wrapper(self, hook)

    @property
    def module(self):
        """The module."""
        found = self._module()
        if found is None:
            raise RuntimeError(f"the module of the hook {self.hook} is gone")
        return found

    def __call__(self, *args, **kwargs):
        return self.hook(self.module, *args, **kwargs)

    def __getstate__(self):
        return {"hook": self.hook, "module": self.module}

    def __setstate__(self, state):
        self.__init__(state["hook"], state["module"])
