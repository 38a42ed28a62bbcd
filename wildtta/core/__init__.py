"""The functional core: pure parts and their composition. It needs torch alone and knows no dataset and no command."""

from wildtta.core.alignments import Alignment, recentre
from wildtta.core.episodic import Episodic
from wildtta.core.guards import Guard, Outcome, go_back_on_collapse, recover_on_collapse
from wildtta.core.measures import Measure, entropy, marginal_entropy, measure, shape_dependence
from wildtta.core.method import Method
from wildtta.core.prediction import Prediction
from wildtta.core.regional import Neighbourhood, region_confidence, regional_entropy, regional_instability
from wildtta.core.regularisers import Regulariser, fisher_anchor
from wildtta.core.restoring import Restoration, Restoring
from wildtta.core.selections import (
    Selection,
    above,
    below,
    confident_region,
    everything,
    non_redundant,
    reliable,
    shape_sensitive,
)
from wildtta.core.updates import Evaluation, Update, adamw, sgd, sharpness_aware
from wildtta.core.views import Views, augmix
from wildtta.core.weightings import Weighting, decaying, growing, uniform

__all__ = [
    "Alignment",
    "Episodic",
    "Evaluation",
    "Guard",
    "Measure",
    "Method",
    "Neighbourhood",
    "Outcome",
    "Prediction",
    "Regulariser",
    "Restoration",
    "Restoring",
    "Selection",
    "Update",
    "Views",
    "Weighting",
    "above",
    "adamw",
    "augmix",
    "below",
    "confident_region",
    "decaying",
    "entropy",
    "everything",
    "fisher_anchor",
    "go_back_on_collapse",
    "growing",
    "marginal_entropy",
    "measure",
    "non_redundant",
    "recentre",
    "recover_on_collapse",
    "region_confidence",
    "regional_entropy",
    "regional_instability",
    "reliable",
    "sgd",
    "shape_dependence",
    "shape_sensitive",
    "sharpness_aware",
    "uniform",
]
