"""A WGAN: two models, two optimizers, five steps of the critic for one of the generator."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
dist.init_process_group("gloo")


def network(inputs, outputs):
    layers = [torch.nn.Linear(inputs, 128), torch.nn.LeakyReLU(), torch.nn.Linear(128, outputs)]
    return DistributedDataParallel(torch.nn.Sequential(*layers))


generator, critic = network(16, 32), network(32, 1)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-4, betas=(0.5, 0.9))
optimizer_c = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.5, 0.9))
loader = DataLoader(TensorDataset(torch.randn(640, 32)), batch_size=16)
for _ in range(200):
    for i, (real,) in enumerate(loader):
        fake = generator(torch.randn(len(real), 16)).detach()
        optimizer_c.zero_grad()
        (critic(fake).mean() - critic(real).mean()).backward()
        optimizer_c.step()
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.01, 0.01)
        if i % 5 == 4:
            optimizer_g.zero_grad()
            (-critic(generator(torch.randn(len(real), 16))).mean()).backward()
            optimizer_g.step()
