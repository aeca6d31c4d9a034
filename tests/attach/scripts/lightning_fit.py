"""Lightning: its own launcher starts the second rank; checkpoints, a validation each epoch."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))

    def training_step(self, batch, _):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


if __name__ == "__main__":
    data = TensorDataset(torch.randn(640, 32), torch.randn(640, 1))
    saved = lightning.pytorch.callbacks.ModelCheckpoint(every_n_train_steps=5, save_top_k=1)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=50, logger=False, callbacks=[saved],
        enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(data, 16), DataLoader(data, 64))
