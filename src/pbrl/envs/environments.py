"""Making environments by name: D4RL's own, restored under today's MuJoCo, and any of Gymnasium's.

``make_env("pbrl/HopperD4RL-v0")`` is the environment D4RL's Hopper data come from; ``make_env`` of
any Gymnasium id gives that environment as Gymnasium ships it.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import io
import warnings
from typing import TYPE_CHECKING, Any

from pbrl.envs.tasks import ENVIRONMENTS
from pbrl.errors import PbrlError, optional_import

if TYPE_CHECKING:
    import gymnasium

D4RL_ENVIRONMENTS: dict[str, str] = {name: known.env_id for name, known in ENVIRONMENTS.items()}
"""D4RL's task name, for example ``"hopper"``, to the id of the environment its data come from."""


def register_environments() -> None:
    """Register our environments with Gymnasium, so that ``gymnasium.make`` knows them too."""
    import gymnasium

    for known in ENVIRONMENTS.values():
        if known.env_id not in gymnasium.registry:
            gymnasium.register(
                known.env_id,
                entry_point=f"pbrl.envs.{known.env_class}",
                max_episode_steps=known.horizon,
                order_enforce=False,
                disable_env_checker=True,
            )


def make_env(env_id: str) -> gymnasium.Env[Any, Any]:
    """An environment by its id: one of ``D4RL_ENVIRONMENTS`` or any id Gymnasium knows.

    Observations must be a vector ``[S]`` and actions a continuous vector ``[A]``; other
    environments, and names that do not exist, are refused with a ``PbrlError``. ``module:Id-v0``
    imports ``module`` first: an id from a file goes through ``named_by_file`` before.
    """
    import gymnasium

    from pbrl.envs.d4rl_physics import keep_mujoco_quiet

    keep_mujoco_quiet()
    register_environments()
    _register_robotics(env_id)
    if env_id not in gymnasium.registry and ":" not in env_id:  # "module:Id-v0" imports its module
        raise _unknown_environment(env_id, gymnasium.registry)
    with warnings.catch_warnings():
        # Gymnasium calls v4 out of date; it is the version whose rewards and models D4RL has.
        warnings.filterwarnings("ignore", message=".*is out of date", category=DeprecationWarning)
        try:
            env: gymnasium.Env[Any, Any] = gymnasium.make(env_id, disable_env_checker=True)
        except PbrlError:
            raise
        except Exception as error:  # the environment's own code, which may fail in any way
            reason = str(error).strip() or type(error).__name__
            raise PbrlError(f"Environment '{env_id}' cannot be made here: {reason}") from error
    try:
        _refuse_unsupported_spaces(env_id, env)
    except PbrlError:
        env.close()
        raise
    return env


def named_by_file(env_id: str | None, where: str) -> str | None:
    """The environment that a file names, refused where making it would run code of its choice.

    Gymnasium imports ``module`` to make ``module:Id-v0``. Which code runs is for the user to say,
    by an argument, and not for a dataset, a run or a sweep file.

    Args:
        env_id: what the file says.
        where: the file, for the message.
    """
    if env_id is not None and ":" in env_id:
        raise PbrlError(
            f"{where} names the environment '{env_id}', and making it would import the module "
            f"'{env_id.split(':')[0]}'; pbrl imports what you name yourself, with --env-id "
            f"{env_id}, and nothing that only a file names."
        )
    return env_id


def import_robotics(module: str = "gymnasium_robotics") -> Any:
    """Import Gymnasium-Robotics without the notice about its v1 rewards that it prints.

    The notice is about the very rewards that our Adroit environments put right.
    """
    with contextlib.redirect_stderr(io.StringIO()):
        return optional_import(module, "adroit")


def _register_robotics(env_id: str) -> None:
    """Let Gymnasium-Robotics register its environments where ``env_id`` may be one of them."""
    import gymnasium

    if env_id.startswith("AdroitHand"):
        gymnasium.register_envs(optional_import("gymnasium_robotics", "adroit"))
    elif env_id not in gymnasium.registry and importlib.util.find_spec("gymnasium_robotics"):
        gymnasium.register_envs(import_robotics())


def _unknown_environment(env_id: str, registry: dict[str, Any]) -> PbrlError:
    ours = ", ".join(D4RL_ENVIRONMENTS.values())
    task = env_id.split("-")[0]  # "hopper" and "hopper-medium-v2" are D4RL's names
    names = {name.lower(): name for name in registry}
    if task in D4RL_ENVIRONMENTS:
        hint = f" Did you mean '{D4RL_ENVIRONMENTS[task]}'?"
    else:
        near = difflib.get_close_matches(env_id.lower(), names, n=1, cutoff=0.6)
        hint = f" Did you mean '{names[near[0]]}'?" if near else ""
    return PbrlError(
        f"Unknown environment '{env_id}'.{hint} D4RL's environments are {ours}; any other id "
        "registered with Gymnasium works too."
    )


def _refuse_unsupported_spaces(env_id: str, env: gymnasium.Env[Any, Any]) -> None:
    from gymnasium.spaces import Box

    for name, space in (("observations", env.observation_space), ("actions", env.action_space)):
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise PbrlError(
                f"Environment '{env_id}' has {name} of the form {_describe(space)}; pbrl supports "
                "observations and actions that are continuous vectors (Box of rank 1)."
            )


def _describe(space: Any) -> str:
    name = type(space).__name__
    return f"{name} with shape {space.shape}" if name == "Box" else name
