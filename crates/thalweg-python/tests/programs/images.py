"""A small convolutional network for images of digits in PyTorch's style; the images are made up."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, 1)
        self.dropout1 = nn.Dropout(0.0)
        self.fc1 = nn.Linear(16 * 5 * 5, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.norm(self.conv1(x)))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)


def weights(model):
    """Sets every parameter to numbers that any library computes alike."""
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            count = torch.arange(parameter.numel(), dtype=torch.float64)
            values = torch.sin(count * 78.233 + place) * 43758.5453
            values = (values - torch.floor(values) - 0.5) * 0.3
            parameter.copy_(values.view(parameter.shape).float())


def images(count=64):
    """Returns images with a bright bar whose position is their class."""
    labels = torch.arange(count) % 10
    rows = torch.arange(14).view(1, 14, 1)
    noise = torch.sin(torch.arange(count * 14 * 14, dtype=torch.float64) * 0.7).float().view(count, 14, 14) * 0.3
    bars = (rows == labels.view(-1, 1, 1)).float().expand(count, 14, 14)
    return (bars + noise).unsqueeze(1), labels


def train(epochs=2):
    """Returns the loss of each step, and the final accuracy of the network."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Net().to(device)
    weights(model)
    loader = DataLoader(TensorDataset(*images()), batch_size=16)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    losses = []
    for _ in range(epochs):
        model.train()
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in loader:
            data, target = data.to(device), target.to(device)
            pred = model(data).argmax(dim=1, keepdim=True)
            correct += pred.eq(target.view_as(pred)).sum().item()
    return losses, correct / 64


if __name__ == "__main__":
    print(train())
