"""Writes forms_in_place.txt: the overloads of PyTorch that write their first tensor in place, for ../it/memory_of_forms.rs. Needs PyTorch, no GPU:

    python3 make_forms.py > forms_in_place.txt
"""
import torch

names = set()
for schema in torch._C._jit_get_all_schemas():
    name = schema.name.removeprefix("aten::")
    first = schema.arguments[0] if schema.arguments else None
    is_in_place = name.endswith("_") and not name.startswith("_") and not name.endswith("__") and "::" not in name
    if is_in_place and str(first.type) == "Tensor" and first.alias_info is not None and first.alias_info.is_write:
        names.add(f"{name}.{schema.overload_name}" if schema.overload_name else name)
print("\n".join(sorted(names)))
