"""Probability distributions (`torch.distributions`)."""

import sys
import types

from . import composed as _composed
from . import constraint_registry, constraints, kl, transforms, utils
from . import continuous as _continuous
from . import discrete as _discrete
from . import multivariate as _multivariate
from .composed import (
    Gumbel, HalfCauchy, HalfNormal, Independent, InverseGamma, Kumaraswamy, LogisticNormal, LogNormal, MixtureSameFamily, Pareto,
    RelaxedBernoulli, RelaxedOneHotCategorical, TransformedDistribution, Weibull)
from .constraint_registry import biject_to, transform_to
from .continuous import (
    Beta, Cauchy, Chi2, ContinuousBernoulli, Exponential, FisherSnedecor, Gamma, GeneralizedPareto, Laplace, Normal, StudentT, Uniform, VonMises)
from .discrete import (
    Bernoulli, Binomial, Categorical, Geometric, Multinomial, NegativeBinomial, OneHotCategorical, OneHotCategoricalStraightThrough, Poisson)
from .distribution import Distribution, ExponentialFamily
from .kl import kl_divergence, register_kl
from .multivariate import Dirichlet, LKJCholesky, LowRankMultivariateNormal, MultivariateNormal, Wishart
from .transforms import *  # noqa: F401,F403

# The modules in which PyTorch defines the classes, if their names are not those of the classes in snake case.
_PLACES = {
    "chi2": ["Chi2"], "exp_family": ["ExponentialFamily"], "fishersnedecor": ["FisherSnedecor"], "lkj_cholesky": ["LKJCholesky"],
    "lowrank_multivariate_normal": ["LowRankMultivariateNormal"], "one_hot_categorical": ["OneHotCategorical", "OneHotCategoricalStraightThrough"],
    "relaxed_bernoulli": ["RelaxedBernoulli", "LogitRelaxedBernoulli"], "relaxed_categorical": ["RelaxedOneHotCategorical", "ExpRelaxedCategorical"],
    "multivariate_normal": ["MultivariateNormal", "_precision_to_scale_tril", "_batch_mahalanobis", "_batch_mv"],
    "studentT": ["StudentT"], "von_mises": ["VonMises"], "logistic_normal": ["LogisticNormal"]}
_NAMES = (
    "bernoulli", "beta", "binomial", "categorical", "cauchy", "continuous_bernoulli", "dirichlet", "exponential", "gamma", "generalized_pareto",
    "geometric", "gumbel", "half_cauchy", "half_normal", "independent", "inverse_gamma", "kumaraswamy", "laplace", "log_normal",
    "mixture_same_family", "multinomial", "multivariate_normal", "negative_binomial", "normal", "pareto", "poisson", "transformed_distribution",
    "uniform", "weibull", "wishart")


def _imported(module):
    """Returns the `__getattr__` of a module of distributions: names that PyTorch's module imports are found in this
    package and in its helpers."""
    def __getattr__(name):
        found = None if name.startswith("__") else globals().get(name) or vars(utils).get(name)
        if found is None:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        return found
    return __getattr__


def _made():
    """Creates the modules in which PyTorch defines the classes."""
    known = {**vars(_continuous), **vars(_discrete), **vars(_multivariate), **vars(_composed), "ExponentialFamily": ExponentialFamily}
    # Functions that libraries take from PyTorch's modules.
    known |= {"_precision_to_scale_tril": _multivariate._factor_of_precision, "_batch_mahalanobis": _multivariate._mahalanobis,
              "_batch_mv": lambda matrix, vector: (matrix @ vector.unsqueeze(-1)).squeeze(-1)}
    known["LogitRelaxedBernoulli"] = known["_LogitRelaxedBernoulli"]
    places = {**{name: ["".join(part.capitalize() for part in name.split("_"))] for name in _NAMES}, **_PLACES}
    for place, names in places.items():
        module = types.ModuleType(f"{__name__}.{place}", f"What PyTorch has in `torch.distributions.{place}`.")
        vars(module).update({name: known[name] for name in names})
        module.__getattr__ = _imported(module.__name__)
        sys.modules[module.__name__] = globals()[place] = module


_made()
__all__ = [name for name, value in list(globals().items()) if isinstance(value, type) and issubclass(value, Distribution)] + [
    "kl_divergence", "register_kl", "biject_to", "transform_to", *transforms.__all__]
