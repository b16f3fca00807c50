"""DINO's loss written independently, in plain Python."""

import math


def softmax(values: list[float]) -> list[float]:
    largest = max(values)
    powers = [math.exp(value - largest) for value in values]
    return [power / sum(powers) for power in powers]


def reference_loss(online, target, centre, *, temperature: float, target_temperature: float) -> list[float]:
    """The paper's algorithm 1 for V online and G target views, in plain Python."""
    V, B, K = online.shape
    G = len(target)
    losses = []
    for b in range(B):
        total, pairs = 0.0, 0
        for t in range(G):
            sharpened = [(float(target[t, b, k]) - float(centre[k])) / target_temperature for k in range(K)]
            p_target = softmax(sharpened)
            for v in range(V):
                if v == t:
                    continue
                p_online = softmax([float(online[v, b, k]) / temperature for k in range(K)])
                total -= sum(p_target[k] * math.log(p_online[k]) for k in range(K))
                pairs += 1
        losses.append(total / pairs)
    return losses
