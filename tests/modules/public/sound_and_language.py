"""Sound and language."""

from typing import Any

import torch
from harness import case
from torch import nn

from public.lit import Lit, draws, load_into, split_loaders, tensors


@case("Transformer of Lightning's demos", "lightning", wraps=True)
def lightning_transformer() -> dict[str, Any]:
    from lightning.pytorch.demos import Transformer

    def loss(net: Any, batch: Any) -> Any:
        words, target = batch
        return nn.functional.nll_loss(net(words, target), target.view(-1))

    def loaders(silo: int) -> dict[str, Any]:
        generator = draws(silo)
        pairs = [tuple(torch.randint(20, (2, 6), generator=generator)) for _ in range(24)]
        return split_loaders(pairs)

    return {
        "make": lambda: Lit(Transformer(20, ninp=8, nhead=2, nhid=8, nlayers=1), loss),
        "loaders": loaders,
        "load": load_into,
    }


@case("BoringModel", "lightning")
def boring() -> dict[str, Any]:
    from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset

    def loaders(silo: int) -> dict[str, Any]:
        torch.manual_seed(silo)
        return split_loaders(RandomDataset(32, 24))

    return {"make": BoringModel, "loaders": loaders}


class _LitHF(Lit):
    """A model of transformers that finds its loss itself, with warm-up by ``estimated_stepping_batches``."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net, lambda net, batch: net(**batch).loss)

    def configure_optimizers(self) -> Any:
        from transformers import get_linear_schedule_with_warmup

        decayed = [p for n, p in self.named_parameters() if "bias" not in n]
        groups = [
            {"params": decayed, "weight_decay": 0.01},
            {"params": [p for n, p in self.named_parameters() if "bias" in n], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=1e-3)
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = get_linear_schedule_with_warmup(optimizer, total // 10, total)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


@case("BertForSequenceClassification on Hugging Face datasets", "transformers", wraps=True)
def bert() -> dict[str, Any]:
    from transformers import BertConfig, BertForSequenceClassification

    import datasets

    def loaders(silo: int) -> dict[str, Any]:
        generator = draws(silo)
        table = datasets.Dataset.from_dict(
            {
                "input_ids": torch.randint(30, (24, 6), generator=generator).tolist(),
                "attention_mask": [[1] * 6] * 24,
                "labels": torch.randint(2, (24,), generator=generator).tolist(),
            }
        ).with_format("torch")
        return split_loaders(table)

    def make() -> Any:
        config = BertConfig(
            vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=2
        )
        return _LitHF(BertForSequenceClassification(config))

    return {"make": make, "loaders": loaders, "load": load_into}


@case("GPT2LMHeadModel (tied embeddings)", "transformers", wraps=True)
def gpt2() -> dict[str, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    def loaders(silo: int) -> dict[str, Any]:
        words = torch.randint(30, (24, 6), generator=draws(silo))
        return split_loaders([{"input_ids": row, "labels": row} for row in words])

    def make() -> Any:
        return _LitHF(GPT2LMHeadModel(GPT2Config(vocab_size=30, n_positions=8, n_embd=8, n_layer=1, n_head=2)))

    return {"make": make, "loaders": loaders, "load": load_into}


@case("ASTForAudioClassification", "transformers", wraps=True)
def audio_spectrogram() -> dict[str, Any]:
    from transformers import ASTConfig, ASTForAudioClassification

    def make() -> Any:
        config = ASTConfig(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            num_mel_bins=16,
            max_length=32,
            num_labels=3,
        )
        return _LitHF(ASTForAudioClassification(config))

    def loaders(silo: int) -> dict[str, Any]:
        return split_loaders([{"input_values": x, "labels": y} for x, y in tensors(silo, (32, 16), classes=3)])

    return {"make": make, "loaders": loaders, "load": load_into}
