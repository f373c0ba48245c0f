# A guest that is running after half a second: it writes "login: " to its serial console, and powers off when the power
# button is pressed. The file is both a kernel (Linux boot protocol 2.0, entered at 0x200) and a bootable disk (sector 0).
# Build: as --32 -o small_guest.o small_guest.s && objcopy -O binary small_guest.o small_guest

.code16

.macro guest
    call 1f
    .asciz "\r\nlogin: "
1:  pop %si
    mov $0x3f8, %dx
2:  add $5, %dx                 # the first serial port: wait until it can send
3:  in %dx, %al
    test $0x20, %al
    jz 3b
    sub $5, %dx
    mov %cs:(%si), %al
    inc %si
    test %al, %al
    jz 4f
    out %al, %dx
    jmp 2b
4:  mov $0x602, %dx             # ACPI, as the firmware places it: enable the power button
    mov $0x100, %ax
    out %ax, %dx
    sti
5:  hlt                         # until the timer ticks
    mov $0x600, %dx
    in %dx, %ax
    test $1, %ah                # the button was pressed
    jz 5b
    mov $0x604, %dx             # sleep state S5: power off
    mov $0x2000, %ax
    out %ax, %dx
    jmp 5b
.endm

    guest

.org 0x1f1
    .byte 1                     # sectors of the code at 0x200, without the first one
.org 0x1fe
    .word 0xaa55
.org 0x200
    jmp begin
    .ascii "HdrS"
    .word 0x200                 # version of the boot protocol
.org 0x211
    .byte 1                     # what follows the code is loaded at 1 MiB
.org 0x280
begin:
    guest
.org 0x600
