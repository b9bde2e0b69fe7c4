"""Put this file into ``optimum/commands/register/`` of the environment; README.md says how."""

from mirage_onnx.integrations.optimum import MirageCommand

REGISTER_COMMANDS = [MirageCommand]
