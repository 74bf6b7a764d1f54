"""One file per design of a drafter, with its facts, settings and paper; the only room that knows their names."""

from importlib import import_module

DESIGNS = (
    "semi", "medusa", "hydra", "recurrent", "mlp", "eagle", "parallel", "skip", "model", "lookup", "recycling",
    "hybrid", "none",
)  # fmt: skip

for name in DESIGNS:  # each registers itself
    import_module(f"{__name__}.{name}")
