"""Methods that CIRCLE is compared with."""

from circle.baselines.finetune import FineTune, FineTuneConfig

__all__ = ["FineTune", "FineTuneConfig"]
