"""Sounds: which instrument plays? The recordings are made by formulas.

    python examples/other_data/sound.py

Each instrument has its own overtones, attack and decay, and plays random pitches with noise. An embedding is
the mean and deviation, over time, of the energy in bands of frequency. Two instruments are unknown.
"""

import numpy as np
from comparison import open_set, run

RATE, SECONDS, BANDS, EACH = 8000, 0.5, 24, 150
INSTRUMENTS = {  # strength of overtones, attack and decay in seconds, share of breath noise
    "flute": ((1, 0.4, 0.1), 0.05, 2.0, 0.10),
    "clarinet": ((1, 0.05, 0.75, 0.05, 0.5, 0.05, 0.15), 0.03, 2.0, 0.02),
    "violin": ((1, 0.9, 0.7, 0.6, 0.5, 0.4, 0.3, 0.3), 0.08, 2.0, 0.03),
    "piano": ((1, 0.6, 0.4, 0.25, 0.15, 0.1), 0.005, 0.25, 0.01),
    "xylophone": ((1, 0, 0, 0.6), 0.002, 0.08, 0.01),
    "organ": ((1, 0.8, 0, 0.6, 0, 0, 0, 0.4), 0.02, 9.0, 0.01),
}
KNOWN = ("flute", "clarinet", "piano", "xylophone")


def play(name, random):
    """Return half a second of an instrument, at a pitch between 200 and 600 Hz."""
    overtones, attack, decay, breath = INSTRUMENTS[name]
    time = np.arange(int(RATE * SECONDS)) / RATE
    pitch = 200 * 3 ** random.random()
    overtones = np.array(overtones) * random.lognormal(0, 0.25, len(overtones))
    wave = sum(
        a * np.sin(2 * np.pi * (i + 1) * pitch * time + random.uniform(0, 6)) for i, a in enumerate(overtones)
    )
    shape = np.minimum(time / attack, 1) * np.exp(-time / (decay * random.lognormal(0, 0.2)))
    return (
        wave / overtones.sum() * shape
        + breath * random.normal(size=len(time)) * shape
        + 0.003 * random.normal(size=len(time))
    )


def embed(wave):
    """Return mean and deviation over time of the logarithm of energies in bands."""
    frames = np.lib.stride_tricks.sliding_window_view(wave, 512)[::128] * np.hanning(512)
    power = np.abs(np.fft.rfft(frames)) ** 2
    edges = np.unique(np.geomspace(4, power.shape[1], BANDS + 1).astype(int))
    energy = np.log(np.add.reduceat(power, edges[:-1], axis=1) + 1e-6)
    return np.concatenate([energy.mean(axis=0), energy.std(axis=0)])


def problems(seed=0):
    random = np.random.default_rng(seed)
    y = np.repeat(list(INSTRUMENTS), EACH)
    X = np.array([embed(play(name, random)) for name in y])
    yield open_set(f"sounds, {len(KNOWN)} of {len(INSTRUMENTS)} instruments", X, y, KNOWN, seed)


if __name__ == "__main__":
    run(problems())
