# shellcheck shell=bash
# The database: SQLite files, or a dedicated PostgreSQL or MariaDB server with its data below DATA_DIR.
# DATABASE_SERVICE is the name of the server's supervisor program, empty for SQLite.

DATABASES="nova keystone glance cinder neutron"

prepare_database() {
    DATABASE_SERVICE=
    secret DATABASE_PASSWORD
    "prepare_$NOVA_DATABASE"
}

database_url() { # NAME: print the SQLAlchemy URL of a database
    case "$NOVA_DATABASE" in
        sqlite) echo "sqlite:///$DATA_DIR/sqlite/$1.sqlite" ;;
        postgresql) echo "postgresql+psycopg2://nova:$DATABASE_PASSWORD@127.0.0.1:$POSTGRESQL_PORT/$1" ;;
        mysql) echo "mysql+pymysql://nova:$DATABASE_PASSWORD@127.0.0.1:$MYSQL_PORT/$1?charset=utf8mb4" ;;
    esac
}

database_state() { # SERVICE: print its version and a hash of its database URL; if they change, the database is migrated
    echo "$("$VENV/bin/python" -c 'import sys, importlib.metadata as m; print(m.version(sys.argv[1]))' "$1")-$(database_url "$1" | sha256sum)"
}

wait_for_database() {
    case "$NOVA_DATABASE" in
        sqlite) note "SQLite files in $DATA_DIR/sqlite" ;;
        postgresql)
            wait_for "PostgreSQL" "$DATA_DIR/logs/postgresql.log" postgresql_command -c 'select 1'
            create_postgresql_databases
            note "PostgreSQL is up on port $POSTGRESQL_PORT"
            ;;
        mysql)
            wait_for "MariaDB" "$DATA_DIR/logs/mariadb.log" mysql_responds
            note "MariaDB is up on port $MYSQL_PORT"
            ;;
    esac
}

prepare_sqlite() { install -d -m 700 "$DATA_DIR/sqlite"; }

prepare_postgresql() {
    local programs data=$DATA_DIR/postgresql
    programs=$(find /usr/lib/postgresql -maxdepth 2 -name bin | sort -V | tail -n 1)
    allocate_port POSTGRESQL_PORT 5432
    install -d -o postgres -g postgres -m 700 "$data" "$DATA_DIR/run/postgresql"
    if [ ! -s "$data/PG_VERSION" ]; then
        (cd / && runuser -u postgres -- "$programs/initdb" -D "$data" -E UTF8 --locale=C.UTF-8 --auth-local=peer \
            --auth-host=scram-sha-256) > "$DATA_DIR/logs/stack/initdb.log" 2>&1 || die "initdb failed" "$DATA_DIR/logs/stack/initdb.log"
    fi
    define_service postgresql "$programs/postgres -D $data -h 127.0.0.1 -p $POSTGRESQL_PORT -k $DATA_DIR/run/postgresql -c max_connections=300" \
        user=postgres priority=3 stopsignal=INT
    DATABASE_SERVICE=postgresql
}

postgresql_command() { # ARGUMENT…: run psql as the owner of the database cluster, over the Unix socket
    (cd / && runuser -u postgres -- psql -qtAX -h "$DATA_DIR/run/postgresql" -p "$POSTGRESQL_PORT" -v ON_ERROR_STOP=1 -d postgres "$@")
}

create_postgresql_databases() {
    local name
    postgresql_command <<- SQL
	DO \$\$ BEGIN CREATE ROLE nova LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END \$\$;
	ALTER ROLE nova PASSWORD '$DATABASE_PASSWORD';
	SQL
    for name in $DATABASES; do
        [ -n "$(postgresql_command -c "select 1 from pg_database where datname = '$name'")" ] ||
            postgresql_command -c "create database $name owner nova"
    done
}

prepare_mysql() {
    local data=$DATA_DIR/mysql name
    allocate_port MYSQL_PORT 3306
    install -d -o mysql -g mysql -m 700 "$data" "$DATA_DIR/run/mysql"
    write_file "$DATA_DIR/etc/mysql/my.cnf" 644 <<- CONF
	[mariadbd]
	datadir=$data
	# dedicated directory: a MariaDB server removes all temporary tables in it when it starts
	tmpdir=$DATA_DIR/run/mysql
	socket=$DATA_DIR/run/mysql/mysqld.sock
	pid-file=$DATA_DIR/run/mysql/mysqld.pid
	bind-address=127.0.0.1
	port=$MYSQL_PORT
	character-set-server=utf8mb4
	max_connections=300
	# runs at every start, to restore missing accounts and databases
	init-file=$DATA_DIR/etc/mysql/init.sql
	CONF
    {
        # For TCP connections MariaDB may match either the host name or the address.
        for name in localhost 127.0.0.1; do
            echo "CREATE USER IF NOT EXISTS 'nova'@'$name';"
            echo "ALTER USER 'nova'@'$name' IDENTIFIED BY '$DATABASE_PASSWORD';"
        done
        for name in $DATABASES; do
            echo "CREATE DATABASE IF NOT EXISTS $name CHARACTER SET utf8mb4;"
            echo "GRANT ALL ON $name.* TO 'nova'@'localhost';"
            echo "GRANT ALL ON $name.* TO 'nova'@'127.0.0.1';"
        done
    } | write_file "$DATA_DIR/etc/mysql/init.sql" 640 root:mysql
    if [ ! -d "$data/mysql" ]; then
        mariadb-install-db --no-defaults --user=mysql --datadir="$data" --tmpdir="$DATA_DIR/run/mysql" --skip-test-db \
            > "$DATA_DIR/logs/stack/mariadb-install.log" 2>&1 || die "mariadb-install-db failed" "$DATA_DIR/logs/stack/mariadb-install.log"
    fi
    define_service mariadb "/usr/sbin/mariadbd --defaults-file=$DATA_DIR/etc/mysql/my.cnf" user=mysql priority=3
    DATABASE_SERVICE=mariadb
}

mysql_responds() {
    URL=$(database_url nova) "$VENV/bin/python" -c 'import os, sqlalchemy; sqlalchemy.create_engine(os.environ["URL"]).connect()'
}
