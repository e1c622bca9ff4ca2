"""A `while` loop, as in reinforcement learning: `python examples/reinforcement.py runs/rl`"""

import sys

import torch
from torch import nn

import distsummary as ds

LENGTH = 8  # positions of the corridor; the goal is the last one
LIMIT = 40  # moves of an episode


def play(policy: nn.Module) -> tuple[torch.Tensor, list[int]]:
    """One episode, begun at position 0: the sum of the log probabilities of its moves, and its positions."""
    position, log_probability, positions = 0, torch.zeros(()), [0]
    while position < LENGTH - 1 and len(positions) < LIMIT:
        logits = policy(nn.functional.one_hot(torch.tensor(position), LENGTH).float())
        choice = torch.distributions.Categorical(logits=logits)
        move = choice.sample()
        log_probability = log_probability + choice.log_prob(move)
        position = max(0, position + (1 if move.item() else -1))
        positions.append(position)
    return log_probability, positions


def main(run_dir: str) -> None:
    """Learn by REINFORCE to walk to the end of a corridor, until ten episodes in a row are nearly optimal."""
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(LENGTH, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.02)
    baseline, in_a_row = -float(LIMIT), 0
    with ds.init(run_dir, watch=policy, optimizer=optimizer) as run:
        while in_a_row < 10 and run.step < 500:
            with run.next_step():  # one step for each episode
                log_probability, positions = play(policy)
                reward = -float(len(positions))
                loss = -(reward - baseline) * log_probability
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                baseline += 0.1 * (reward - baseline)
                in_a_row = in_a_row + 1 if len(positions) <= LENGTH + 2 else 0
                run.log({"episode/reward": reward, "episode/baseline": baseline}, loss=loss)
    print(f"{run.step} episodes; the last took {len(positions) - 1} moves")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/rl")
