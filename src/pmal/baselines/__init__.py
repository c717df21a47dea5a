"""The methods that PMAL is compared with: one head each, all under the same encoders, recipes and trainer.

Importing a module registers its heads; `pmal.methods` says which method has which.
"""

from pmal.baselines import arpl, cgdl, cpn, openhybrid, openmax, proser, rpl

__all__ = ["arpl", "cgdl", "cpn", "openhybrid", "openmax", "proser", "rpl"]
