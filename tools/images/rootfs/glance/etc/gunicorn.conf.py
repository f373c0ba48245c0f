wsgi_app = "glance.wsgi.api:application"
bind = ["0.0.0.0:9292"]
worker_class = "gthread"
workers = 2
threads = 4
# seconds: for longer than clients keep a connection, and for an image to come
keepalive = 75
timeout = 300
control_socket_disable = True
