wsgi_app = "glance.wsgi.api:application"
bind = ["0.0.0.0:9292"]
worker_class = "gthread"
workers = 2
threads = 4
# seconds: longer than clients keep idle connections, and long enough for an image upload
keepalive = 75
timeout = 300
control_socket_disable = True
