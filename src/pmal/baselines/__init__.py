"""The methods that PMAL is compared with: one head each, all under the same encoders, recipes and trainer.

Importing a module registers its heads; `pmal.methods` says which method has which.
"""

from pmal.baselines import cgdl, cpn, openhybrid

__all__ = ["cgdl", "cpn", "openhybrid"]
