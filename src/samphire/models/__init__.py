"""The networks of the papers, and :func:`load`, which builds any network by name and gives it weights."""

from samphire.models.efficientnet import EfficientNetLite0
from samphire.models.layers import Normalize
from samphire.models.loading import NETWORKS, load
from samphire.models.networks import ResNet18, ToyNet, mlp, small_cnn, two_views

__all__ = [
    "load",
    "NETWORKS",
    "Normalize",
    "ToyNet",
    "two_views",
    "mlp",
    "small_cnn",
    "ResNet18",
    "EfficientNetLite0",
]
