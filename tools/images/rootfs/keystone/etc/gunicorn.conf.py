wsgi_app = "keystone.wsgi.api:application"
bind = ["0.0.0.0:5000"]
worker_class = "gthread"
workers = 2
threads = 4
# seconds: longer than clients keep idle connections
keepalive = 75
timeout = 300
control_socket_disable = True
