"""Sessions that run the op on the CPU, by the driver's stand-in."""

from mirage_onnx.custom_op import InferenceSession, Launch, Variant

CPU = ["CPUExecutionProvider"]


def run(session, feeds):
  return session.run(None, feeds)[0]


def hosted(model, driver):
  return InferenceSession(model, providers=CPU, ep="host", driver=driver)


def host_session(models, driver, plan, **kwargs):
  return hosted(models.add(models.bundle(plan), **kwargs), driver)


def replace_launch(models, **fields):
  base = models.add_plan().variants[0].launches[0]
  merged = {name: getattr(base, name) for name in base.__slots__} | fields
  return models.add_plan(variants=(Variant((Launch(**merged),)),))
