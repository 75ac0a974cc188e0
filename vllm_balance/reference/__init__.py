"""The reference platform: the real vLLM engine on a CPU, with no compiled operator.

Entry point of group ``vllm.platform_plugins``. The package is part of the wheel's
target ``reference`` only. It exists to run the engine (API server, data-parallel
ranks, scheduler, model runner) on any machine and to compare its output with another
implementation. Its speed means nothing.
"""

from importlib.metadata import entry_points

PLATFORM = "vllm_balance.reference.platform.ReferencePlatform"


def register() -> str | None:
    """Name the platform class, or None to leave the choice to another plugin.

    vLLM prefers a plugin to its own platforms (CUDA and the rest), and refuses two
    active plugins. This one therefore steps back when ``VLLM_PLUGINS`` admits another
    platform plugin, such as a hardware vendor's; with a graphics card and no other
    plugin it stays: this build has no operator that the card could run.
    """
    # Not at the top: vllm asks for the platform while it is being imported.
    import vllm.envs as envs

    admitted: list[str] | None = envs.VLLM_PLUGINS
    others = [
        plugin.name
        for plugin in entry_points(group="vllm.platform_plugins")
        if not plugin.value.startswith("vllm_balance.")
        and (admitted is None or plugin.name in admitted)
    ]
    return None if others else PLATFORM
