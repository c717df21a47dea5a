"""The methods that PMAL is compared with: one head each, all under the same encoders, recipes and trainer.

Importing a module registers its methods, as a plugin does with those of its own.
"""

from pmal.baselines import arpl, cgdl, conosr, cpn, cssr, openhybrid, openmax, proser, rpl, sphor

__all__ = ["arpl", "cgdl", "conosr", "cpn", "cssr", "openhybrid", "openmax", "proser", "rpl", "sphor"]
