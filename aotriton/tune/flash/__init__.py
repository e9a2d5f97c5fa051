"""The attention family's part of tuning."""

from aotriton.tune.flash.tuning import FlashTuning

TUNING = FlashTuning()
