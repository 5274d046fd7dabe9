"""Callbacks: who collaborates, who takes part, on what data, for what reward; and watching and keeping a run."""

from typing import TYPE_CHECKING

from lightning_fl.core.lazy import lazy_exports

if TYPE_CHECKING:
    from lightning_fl.callbacks.calibration import Calibration as Calibration
    from lightning_fl.callbacks.callback import Callback as Callback
    from lightning_fl.callbacks.collaboration.cfl import CFL as CFL
    from lightning_fl.callbacks.collaboration.cfl import ClusterSplit as ClusterSplit
    from lightning_fl.callbacks.collaboration.client_arrivals import ClientArrivals as ClientArrivals
    from lightning_fl.callbacks.collaboration.client_clusters import ClientClusters as ClientClusters
    from lightning_fl.callbacks.collaboration.collaboration_graph import CollaborationGraph as CollaborationGraph
    from lightning_fl.callbacks.collaboration.discriminators.networks import (
        DiscriminatorSettings as DiscriminatorSettings,
    )
    from lightning_fl.callbacks.collaboration.fedcollab import FedCollab as FedCollab
    from lightning_fl.callbacks.collaboration.fesem import FeSEM as FeSEM
    from lightning_fl.callbacks.collaboration.flsc import FLSC as FLSC
    from lightning_fl.callbacks.collaboration.hcct import HCCT as HCCT
    from lightning_fl.callbacks.collaboration.ifca import IFCA as IFCA
    from lightning_fl.callbacks.collaboration.kmeans import KMeans as KMeans
    from lightning_fl.callbacks.collaboration.pfedgraph import PFedGraph as PFedGraph
    from lightning_fl.callbacks.figures.figures import CoalitionFigure as CoalitionFigure
    from lightning_fl.callbacks.figures.figures import CollaborationFigure as CollaborationFigure
    from lightning_fl.callbacks.figures.figures import ContributionFigure as ContributionFigure
    from lightning_fl.callbacks.figures.figures import Figures as Figures
    from lightning_fl.callbacks.figures.figures import GainFigure as GainFigure
    from lightning_fl.callbacks.figures.figures import GraphFigure as GraphFigure
    from lightning_fl.callbacks.figures.figures import LearningCurves as LearningCurves
    from lightning_fl.callbacks.figures.figures import SamplingWeightsFigure as SamplingWeightsFigure
    from lightning_fl.callbacks.figures.figures import TierFigures as TierFigures
    from lightning_fl.callbacks.figures.held_out import CalibrationFigure as CalibrationFigure
    from lightning_fl.callbacks.figures.held_out import ParityFigure as ParityFigure
    from lightning_fl.callbacks.figures.held_out import PrecisionRecallFigure as PrecisionRecallFigure
    from lightning_fl.callbacks.figures.held_out import ROCFigure as ROCFigure
    from lightning_fl.callbacks.group_agreement import GroupAgreement as GroupAgreement
    from lightning_fl.callbacks.last_rounds import LastRounds as LastRounds
    from lightning_fl.callbacks.local_data.label_noise import LabelNoise as LabelNoise
    from lightning_fl.callbacks.local_data.local_mixup import LocalMixup as LocalMixup
    from lightning_fl.callbacks.model_checkpoint import ModelCheckpoint as ModelCheckpoint
    from lightning_fl.callbacks.participation.dro_client_sampling import DROClientSampling as DROClientSampling
    from lightning_fl.callbacks.participation.pooled_training import PooledTraining as PooledTraining
    from lightning_fl.callbacks.participation.uniform_sampling import UniformSampling as UniformSampling
    from lightning_fl.callbacks.personal.best_client_models import BestClientModels as BestClientModels
    from lightning_fl.callbacks.personal.fedsoft import FedSoft as FedSoft
    from lightning_fl.callbacks.personal.fine_tuning import FineTuning as FineTuning
    from lightning_fl.callbacks.personal.forest_reference import ForestReference as ForestReference
    from lightning_fl.callbacks.personal.knn_per import KNNPer as KNNPer
    from lightning_fl.callbacks.personal.local_reference import LocalReference as LocalReference
    from lightning_fl.callbacks.personal.local_reference import LocalTraining as LocalTraining
    from lightning_fl.callbacks.personal.personal_layers import PersonalLayers as PersonalLayers
    from lightning_fl.callbacks.personal.personal_layers import PrivateHeads as PrivateHeads
    from lightning_fl.callbacks.personal.pretrained_weights import PretrainedWeights as PretrainedWeights
    from lightning_fl.callbacks.personal.soft_averaging import SoftAveraging as SoftAveraging
    from lightning_fl.callbacks.progress import ProgressDisplay as ProgressDisplay
    from lightning_fl.callbacks.rewards.bidding import BiddingPolicy as BiddingPolicy
    from lightning_fl.callbacks.rewards.bidding import HonestBidding as HonestBidding
    from lightning_fl.callbacks.rewards.bidding import RandomBidding as RandomBidding
    from lightning_fl.callbacks.rewards.shapley_rewards import ShapleyRewards as ShapleyRewards
    from lightning_fl.callbacks.rewards.tier_bidding import TierBidding as TierBidding
    from lightning_fl.callbacks.rewards.tokens import Tokens as Tokens
    from lightning_fl.callbacks.snapshots import Snapshots as Snapshots
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
