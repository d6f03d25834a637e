"""Distributions with fixed arguments, and the queries for each, under PyTorch and this package.

    python distribution_cases.py FILE

writes PyTorch's answers.
"""

import gzip
import json
import math
import sys


def _tensors(torch):
    def t(*values):
        return torch.tensor(values, dtype=torch.float64)
    return t


def distributions(torch, D):
    """Returns distributions by name, each with a value."""
    t = _tensors(torch)
    cov = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    thin = torch.tensor([[1.0], [2.0], [0.5]], dtype=torch.float64)
    correlations = torch.tensor([[1.0, 0.3, 0.2], [0.3, 1.0, 0.1], [0.2, 0.1, 1.0]], dtype=torch.float64)
    return {
        "Normal": (D.Normal(t(0.5, 1.0), t(1.0, 2.0)), t(0.3, -1.0)),
        "Uniform": (D.Uniform(t(0.0, 1.0), t(1.0, 3.0)), t(0.3, 2.0)),
        "Exponential": (D.Exponential(t(0.5, 2.0)), t(0.3, 1.0)),
        "Laplace": (D.Laplace(t(0.5, 1.0), t(1.0, 2.0)), t(0.3, -1.0)),
        "Cauchy": (D.Cauchy(t(0.5, 1.0), t(1.0, 2.0)), t(0.3, -1.0)),
        "Gamma": (D.Gamma(t(0.5, 3.0), t(1.0, 2.0)), t(0.3, 1.0)),
        "Chi2": (D.Chi2(t(3.0, 5.0)), t(0.3, 1.0)),
        "Beta": (D.Beta(t(0.5, 3.0), t(1.5, 2.0)), t(0.3, 0.6)),
        "StudentT": (D.StudentT(t(3.0, 5.0), t(0.0, 1.0), t(1.0, 2.0)), t(0.3, 1.0)),
        "FisherSnedecor": (D.FisherSnedecor(t(3.0, 5.0), t(6.0, 7.0)), t(0.3, 1.0)),
        "VonMises": (D.VonMises(t(0.0, 1.0), t(1.0, 3.0)), t(0.3, 1.0)),
        "ContinuousBernoulli": (D.ContinuousBernoulli(probs=t(0.2, 0.5)), t(0.3, 0.6)),
        "GeneralizedPareto": (D.GeneralizedPareto(t(0.0, 1.0).float(), t(1.0, 2.0).float(), t(0.1, 0.2).float()), t(0.3, 1.5).float()),
        "Bernoulli": (D.Bernoulli(t(0.2, 0.7)), t(0.0, 1.0)),
        "BernoulliL": (D.Bernoulli(logits=t(0.2, -0.7)), t(0.0, 1.0)),
        "Geometric": (D.Geometric(t(0.2, 0.7)), t(0.0, 3.0)),
        "Binomial": (D.Binomial(5, t(0.2, 0.7)), t(0.0, 3.0)),
        "NegativeBinomial": (D.NegativeBinomial(t(5.0, 2.0), t(0.2, 0.7)), t(0.0, 3.0)),
        "Poisson": (D.Poisson(t(0.2, 30.0)), t(0.0, 3.0)),
        "Categorical": (D.Categorical(torch.stack([t(0.2, 0.3, 0.5), t(0.1, 0.1, 0.8)])), torch.tensor([0, 2])),
        "OneHot": (D.OneHotCategorical(t(0.2, 0.3, 0.5)), t(0.0, 1.0, 0.0)),
        "Multinomial": (D.Multinomial(4, t(0.2, 0.3, 0.5)), t(1.0, 1.0, 2.0)),
        "Dirichlet": (D.Dirichlet(t(0.6, 1.3, 2.5)), t(0.2, 0.3, 0.5)),
        "MVN": (D.MultivariateNormal(t(0.0, 1.0), cov), t(0.3, 0.4)),
        "MVNp": (D.MultivariateNormal(t(0.0, 1.0), precision_matrix=cov), t(0.3, 0.4)),
        "LowRank": (D.LowRankMultivariateNormal(t(0.0, 1.0, 2.0), thin, t(1.0, 2.0, 3.0)), t(0.3, 0.4, 0.5)),
        "LKJ": (D.LKJCholesky(3, t(1.5)), torch.linalg.cholesky(correlations)[None]),
        "Wishart": (D.Wishart(t(4.0)[0], cov), cov*3),
        "Independent": (D.Independent(D.Normal(t(0.5, 1.0), t(1.0, 2.0)), 1), t(0.3, -1.0)),
        "LogNormal": (D.LogNormal(t(0.5, 1.0), t(1.0, 0.5)), t(0.3, 1.0)),
        "HalfNormal": (D.HalfNormal(t(1.0, 2.0)), t(0.3, 1.0)),
        "HalfCauchy": (D.HalfCauchy(t(1.0, 2.0)), t(0.3, 1.0)),
        "Gumbel": (D.Gumbel(t(0.5, 1.0), t(1.0, 2.0)), t(0.3, -1.0)),
        "Kumaraswamy": (D.Kumaraswamy(t(1.5, 2.0), t(2.0, 3.0)), t(0.3, 0.6)),
        "Pareto": (D.Pareto(t(1.0, 2.0), t(3.0, 4.0)), t(1.3, 2.6)),
        "Weibull": (D.Weibull(t(1.0, 2.0), t(3.0, 0.7)), t(1.3, 2.6)),
        "InverseGamma": (D.InverseGamma(t(3.0, 2.5), t(3.0, 4.0)), t(1.3, 2.6)),
        "LogisticNormal": (D.LogisticNormal(t(0.5, 1.0), t(1.0, 2.0)), t(0.2, 0.3, 0.5)),
        "RelaxedBernoulli": (D.RelaxedBernoulli(t(0.7), t(0.2, 0.7)), t(0.3, 0.6)),
        "RelaxedOneHot": (D.RelaxedOneHotCategorical(t(0.7), t(0.2, 0.3, 0.5)), t(0.2, 0.3, 0.5)),
        "Mixture": (D.MixtureSameFamily(D.Categorical(t(0.3, 0.7)), D.Normal(t(0.5, 1.0), t(1.0, 2.0))), t(0.3)[0]),
    }


def answered(call):
    """Returns the numbers that a call returns as a list, or the name of its exception."""
    try:
        found = call()
    except (NotImplementedError, ValueError) as error:
        return type(error).__name__
    return [value if math.isfinite(value) else str(value) for value in found.double().reshape(-1).tolist()]


def answers(torch, D):
    """Returns the queries with their answers."""
    t, made, found = _tensors(torch), distributions(torch, D), {}
    for name, (one, value) in made.items():
        found[name] = {
            "log_prob": answered(lambda: one.log_prob(value)), "cdf": answered(lambda: one.cdf(value)), "mean": answered(lambda: one.mean),
            "variance": answered(lambda: one.variance), "mode": answered(lambda: one.mode), "entropy": answered(one.entropy),
            "icdf": answered(lambda: one.icdf(t(0.3, 0.6))),
            "expanded": answered(lambda: one.expand((2,) + tuple(one.batch_shape)).log_prob(value)),
            "values": answered(lambda: one.enumerate_support() if one.has_enumerate_support else t(0.0)),
            "shape": list(one.sample((5,)).shape)}
    for one, (p, _) in made.items():
        for other, (q, _) in made.items():
            divergence = answered(lambda: D.kl_divergence(p, q))
            if isinstance(divergence, list):
                found[f"{one} from {other}"] = {"divergence": divergence}
    for name in ("real", "positive", "unit_interval", "simplex", "lower_cholesky", "corr_cholesky", "positive_definite", "nonnegative"):
        constraint = getattr(D.constraints, name)
        for registry in ("biject_to", "transform_to"):
            try:
                transform = getattr(D, registry)(constraint)
            except NotImplementedError:
                continue
            matrices = name in ("lower_cholesky", "positive_definite")
            x = t(-1.0, -0.3, 0.3, 1.0).reshape(2, 2) if matrices else t(-1.0, 0.0, 1.0)
            y = transform(x)
            found[f"{registry} {name}"] = {
                "value": answered(lambda: y), "back": answered(lambda: transform.inv(y)), "inside": answered(lambda: constraint.check(y).all()),
                "jacobian": answered(lambda: transform.log_abs_det_jacobian(x, y))}
    return found


if __name__ == "__main__":
    import torch
    import torch.distributions

    with gzip.GzipFile(sys.argv[1], "wb", mtime=0) as file:
        file.write(json.dumps(answers(torch, torch.distributions)).encode())
