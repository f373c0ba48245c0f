wsgi_app = "keystone.wsgi.api:application"
bind = ["0.0.0.0:5000"]
worker_class = "gthread"
workers = 2
threads = 4
# seconds: for longer than clients keep a connection
keepalive = 75
timeout = 300
control_socket_disable = True
