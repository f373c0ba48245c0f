"""An oslo.messaging driver for RabbitMQ (``nova-rabbit://``) and for one process (``nova-memory://``).

:mod:`~nova.bus.driver.driver` has the driver classes. They use a :class:`~nova.bus.driver.broker.Broker`:
:mod:`~nova.bus.driver.rabbit` (on py-amqp) or :mod:`~nova.bus.driver.memory`. Messages have the format of
oslo.messaging's own ``rabbit://`` driver, so that both work on one broker."""
