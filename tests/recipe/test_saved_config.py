from lightning_fl.recipe.run import _hyperparameters


def test_hyperparameters():
    config = {
        "config": ["x.yaml"],
        "ckpt_path": "last",
        "seed_everything": 1,
        "trainer": {
            "max_rounds": 3,
            "plugins": None,
            "callbacks": [{"class_path": "a.b.Mix", "init_args": {"alpha": 0.5, "layer": None}}],
        },
        "model": {
            "class_path": "a.Net",
            "init_args": {"sizes": [8, 4], "bias": True, "head": {"class_path": "a.Head"}},
        },
    }
    assert _hyperparameters(config) == {
        "seed_everything": 1,
        "trainer.max_rounds": 3,
        "trainer.callbacks.Mix": "Mix",
        "trainer.callbacks.Mix.alpha": 0.5,
        "model": "Net",
        "model.sizes": "[8, 4]",
        "model.bias": True,
        "model.head": "Head",
    }
