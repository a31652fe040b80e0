"""The networks of the papers, and :func:`load`, which builds any network by name with weights."""

from samphire.models.efficientnet import EfficientNetLite0
from samphire.models.layers import Normalize
from samphire.models.loading import NETWORKS, load
from samphire.models.networks import ResNet18, ToyNet, mlp, small_cnn, two_views

__all__ = [
    "EfficientNetLite0", "NETWORKS", "Normalize", "ResNet18", "ToyNet", "load", "mlp", "small_cnn", "two_views",
]  # fmt: skip
