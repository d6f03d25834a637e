"""The operator table in Python: every operator is a function, a method and an in-place variant, with its schema as
documentation."""

import inspect

import thalweg as th

TABLE = th._core._table()


def test_every_operator_is_there():
    names = {name for name in th._core._operator_names() if "::" not in name and not name.endswith(("_out", ".out"))}
    found = {overload["name"] for overload in TABLE}
    assert len(names) > 900, len(names)
    assert not names - found, sorted(names - found)


def test_every_name_is_a_function_and_a_method():
    for overload in TABLE:
        name = overload["function"]
        in_place = name.endswith("_") and not name.endswith("__")
        if not in_place:
            assert callable(getattr(th._core, name)), name
            assert callable(getattr(th, name)), name
        if overload["receiver"] is not None:
            assert hasattr(th.Tensor, name), name


def test_documentation_is_the_tables():
    for overload in TABLE:
        if overload["function"].endswith("_"):
            continue
        text = getattr(th._core, overload["function"]).__doc__
        assert overload["schema"] in text, overload["name"]
        for line in overload["documentation"].splitlines():
            assert line.strip() in text, overload["name"]


def test_forms_in_place_give_the_tensor_itself():
    x = th.ones(3)
    assert x.add_(1) is x and x.tolist() == [2.0, 2.0, 2.0]
    assert x.relu_() is x and x.clamp_(max=1.0) is x and x.tolist() == [1.0, 1.0, 1.0]


def test_modules_of_prefixes():
    for name in ("inv", "solve", "vector_norm", "cholesky"):
        assert getattr(th.linalg, name) is getattr(th._core, f"linalg_{name}")
    assert inspect.ismodule(th.special) and callable(th.special.erf)
