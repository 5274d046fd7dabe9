"""Callbacks: who collaborates, who takes part, on what data, for what reward; and watching and keeping a run."""

from lightning_fl.callbacks.calibration import Calibration
from lightning_fl.callbacks.callback import Callback
from lightning_fl.callbacks.collaboration.cfl import CFL, ClusterSplit
from lightning_fl.callbacks.collaboration.client_arrivals import ClientArrivals
from lightning_fl.callbacks.collaboration.client_clusters import ClientClusters
from lightning_fl.callbacks.collaboration.collaboration_graph import CollaborationGraph
from lightning_fl.callbacks.collaboration.fedcollab import FedCollab
from lightning_fl.callbacks.collaboration.fesem import FeSEM
from lightning_fl.callbacks.collaboration.flsc import FLSC
from lightning_fl.callbacks.collaboration.hcct import HCCT
from lightning_fl.callbacks.collaboration.ifca import IFCA
from lightning_fl.callbacks.collaboration.kmeans import KMeans
from lightning_fl.callbacks.collaboration.pfedgraph import PFedGraph
from lightning_fl.callbacks.figures.classification import CalibrationFigure, PrecisionRecallFigure, ROCFigure
from lightning_fl.callbacks.figures.coalition import CoalitionFigure
from lightning_fl.callbacks.figures.collaboration import CollaborationFigure
from lightning_fl.callbacks.figures.contribution import ContributionFigure
from lightning_fl.callbacks.figures.gain import GainFigure
from lightning_fl.callbacks.figures.graph import GraphFigure
from lightning_fl.callbacks.figures.learning_curves import LearningCurves
from lightning_fl.callbacks.figures.parity import ParityFigure
from lightning_fl.callbacks.figures.sampling_weights import SamplingWeightsFigure
from lightning_fl.callbacks.figures.tier import TierFigures
from lightning_fl.callbacks.group_agreement import GroupAgreement
from lightning_fl.callbacks.last_rounds import LastRounds
from lightning_fl.callbacks.local_data.label_noise import LabelNoise
from lightning_fl.callbacks.local_data.local_mixup import LocalMixup
from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint
from lightning_fl.callbacks.participation.dro_client_sampling import DROClientSampling
from lightning_fl.callbacks.participation.pooled_training import PooledTraining
from lightning_fl.callbacks.participation.uniform_sampling import UniformSampling
from lightning_fl.callbacks.personal.best_client_models import BestClientModels
from lightning_fl.callbacks.personal.fedsoft import FedSoft
from lightning_fl.callbacks.personal.fine_tuning import FineTuning
from lightning_fl.callbacks.personal.forest_reference import ForestReference
from lightning_fl.callbacks.personal.knn_per import KNNPer
from lightning_fl.callbacks.personal.local_reference import LocalReference
from lightning_fl.callbacks.personal.local_training import LocalTraining
from lightning_fl.callbacks.personal.personal_layers import PersonalLayers
from lightning_fl.callbacks.personal.pretrained_weights import PretrainedWeights
from lightning_fl.callbacks.personal.private_heads import PrivateHeads
from lightning_fl.callbacks.personal.soft_averaging import SoftAveraging
from lightning_fl.callbacks.progress import ProgressDisplay
from lightning_fl.callbacks.rewards.bidding import BiddingPolicy, HonestBidding, RandomBidding
from lightning_fl.callbacks.rewards.shapley_rewards import ShapleyRewards
from lightning_fl.callbacks.rewards.tier_bidding import TierBidding
from lightning_fl.callbacks.rewards.tokens import Tokens
from lightning_fl.callbacks.snapshots import Snapshots
from lightning_fl.functional.client_discriminator import DiscriminatorSettings

__all__ = [
    "CFL",
    "FLSC",
    "HCCT",
    "IFCA",
    "BestClientModels",
    "BiddingPolicy",
    "Calibration",
    "CalibrationFigure",
    "Callback",
    "ClientArrivals",
    "ClientClusters",
    "ClusterSplit",
    "CoalitionFigure",
    "CollaborationFigure",
    "CollaborationGraph",
    "ContributionFigure",
    "DROClientSampling",
    "DiscriminatorSettings",
    "FeSEM",
    "FedCollab",
    "FedSoft",
    "FineTuning",
    "ForestReference",
    "GainFigure",
    "GraphFigure",
    "GroupAgreement",
    "HonestBidding",
    "KMeans",
    "KNNPer",
    "LabelNoise",
    "LastRounds",
    "LearningCurves",
    "LocalMixup",
    "LocalReference",
    "LocalTraining",
    "ModelCheckpoint",
    "PFedGraph",
    "ParityFigure",
    "PersonalLayers",
    "PooledTraining",
    "PrecisionRecallFigure",
    "PretrainedWeights",
    "PrivateHeads",
    "ProgressDisplay",
    "ROCFigure",
    "RandomBidding",
    "SamplingWeightsFigure",
    "ShapleyRewards",
    "Snapshots",
    "SoftAveraging",
    "TierBidding",
    "TierFigures",
    "Tokens",
    "UniformSampling",
]
