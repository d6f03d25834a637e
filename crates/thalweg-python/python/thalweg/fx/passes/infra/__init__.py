"""Passes and their order (`torch.fx.passes.infra`)."""
