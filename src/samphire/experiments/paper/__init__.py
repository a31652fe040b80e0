"""The experiments of the paper, in its order."""

from samphire.experiments.experiment import Experiment
from samphire.experiments.paper.fig1 import FIG1
from samphire.experiments.paper.fig2 import FIG2
from samphire.experiments.paper.fig3 import FIG3
from samphire.experiments.paper.fig4 import FIG4
from samphire.experiments.paper.fig5_toy import FIG5_TOY
from samphire.experiments.paper.fig6_toy import FIG6_TOY
from samphire.experiments.paper.fig7 import FIG7
from samphire.experiments.paper.fig7_images import FIG7_CIFAR_MNIST
from samphire.experiments.paper.fig8_toy import FIG8_TOY
from samphire.experiments.paper.fig9_toy import FIG9_TOY
from samphire.experiments.paper.fig10 import FIG10
from samphire.experiments.paper.fig11 import FIG11
from samphire.experiments.paper.image_weights import IMAGE_FIGURES
from samphire.experiments.paper.probe_study import PROBE_STUDY
from samphire.experiments.paper.scoreboard import SCOREBOARD
from samphire.experiments.paper.scoreboard_images import SCOREBOARD_CIFAR_MNIST
from samphire.experiments.paper.table1 import TABLE1
from samphire.experiments.paper.table2 import TABLE2
from samphire.experiments.paper.theory import THEORY

PAPER: tuple[Experiment, ...] = (
    FIG1, FIG2, FIG3, FIG4, FIG5_TOY, *IMAGE_FIGURES[5], FIG6_TOY, *IMAGE_FIGURES[6], FIG7, FIG7_CIFAR_MNIST,
    FIG8_TOY, *IMAGE_FIGURES[8], FIG9_TOY, *IMAGE_FIGURES[9], FIG10, FIG11, TABLE1, TABLE2, PROBE_STUDY, SCOREBOARD,
    SCOREBOARD_CIFAR_MNIST, THEORY,
)  # fmt: skip

__all__ = ["PAPER", "SCOREBOARD"]
